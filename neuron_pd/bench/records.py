"""What a run measured: a record for each request, and a cell for each leg of a setting that was measured to its end.

Times are seconds of the client's monotonic clock (`time.perf_counter`), raw: figures are derived later.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

from neuron_pd.core.transfer import TurnReport

OFF, ON = "off", "on"


@dataclass(frozen=True, slots=True)
class Counters:
    """Numbers of an engine that only grow."""

    def since(self, before: Self) -> Self | None:
        """What came after `before`; None when a counter went back, because the engine was started anew."""
        pairs = [(getattr(self, f.name), getattr(before, f.name)) for f in fields(self)]
        if any(now < then for now, then in pairs):
            return None
        return type(self)(*(now - then for now, then in pairs))

    @classmethod
    def from_json(cls, body: Mapping[str, Any] | None) -> Self | None:
        return None if body is None else cls(**{f.name: body[f.name] for f in fields(cls) if f.name in body})


@dataclass(frozen=True, slots=True)
class Transfers(Counters):
    """What an engine's NIXL metrics counted: transfers that ended, their summed seconds, bytes and descriptors, and
    failures."""

    count: float = 0
    seconds: float = 0.0
    bytes: float = 0
    failed: float = 0
    descriptors: float = 0

    @property
    def mean_ms(self) -> float:
        """Milliseconds a transfer. The ranks of a tensor-parallel engine transfer side by side, so this is the wall
        time of a turn's one read."""
        return 1000 * self.seconds / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Phases(Counters):
    """Where an engine's requests spent their time, summed seconds by its own clock, over the `count` that ended.

    `queued` is the time until computing began, and so holds the wait for KV that is read from another engine; `prefill`
    is from there to the first token; `first_token` is from the request's arrival at the API to the first token.
    """

    count: float = 0
    first_token: float = 0.0
    queued: float = 0.0
    prefill: float = 0.0


class Setting(NamedTuple):
    """What a measurement varies, the leg aside.

    `length` is the planned first prompt in tokens, 0 where the workload has lengths of its own. `concurrency` is how
    many conversations there are at a time; where it is 0 they arrive by themselves, `rate` a second, or when a trace
    says so. `think` is the pause before each later turn in seconds, `link` the emulated interconnect.
    """

    length: int
    concurrency: int = 1
    rate: float = 0.0
    think: float = 0.0
    link: str = ""

    def __str__(self) -> str:
        """For people: what differs from one conversation at a time without pauses."""
        parts = [f"{self.length:,} tokens" if self.length else ""]
        parts += [f"{self.concurrency} at a time" if self.concurrency > 1 else ""]
        parts += [f"{self.rate:g}/s" if self.rate else ""]
        parts += [f"think {self.think:g} s" if self.think else "", self.link]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Record:
    """One request as the client saw it, and what the servers said of it.

    `head` is when the answer's headers came; `first_token` is the first token of any kind (content, reasoning, tool
    call), `first_content` the first visible text; `chunks` holds the arrival of every event of the stream, `pieces` of
    which held visible text. `history` identifies the messages that were sent.
    `server_timing` is the proxy's `Server-Timing`, in milliseconds by name. `read_back` is what the prefill engine
    read (D→P), `hand_off` what the decode engine read (P→D), `prefill_phases` and `decode_phases` where the two spent
    their time; None where the engine's metrics were not available or other requests were under way.
    `index` counts a cell's conversations, `note` is the kind of turn, `due` when an open loop meant to send it.
    """

    leg: str
    length: int
    repeat: int
    turn: int
    conversation: str
    history: str
    started_at: float
    started: float
    ended: float
    head: float | None = None
    first_token: float | None = None
    first_content: float | None = None
    chunks: tuple[float, ...] = ()
    pieces: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reply_tokens: int | None = None
    reply: str = ""
    finish_reason: str = ""
    status: int = 0
    error: str = ""
    server_timing: dict[str, float] = field(default_factory=dict)
    report: TurnReport | None = None
    read_back: Transfers | None = None
    hand_off: Transfers | None = None
    prefill_phases: Phases | None = None
    decode_phases: Phases | None = None
    index: int = 0
    note: str = ""
    due: float | None = None
    concurrency: int = 1
    rate: float = 0.0
    think: float = 0.0
    link: str = ""

    @property
    def setting(self) -> Setting:
        return Setting(self.length, self.concurrency, self.rate, self.think, self.link)

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def ttft_ms(self) -> float | None:
        return self._after(self.first_token)

    @property
    def head_ms(self) -> float | None:
        return self._after(self.head)

    @property
    def content_ms(self) -> float | None:
        return self._after(self.first_content)

    @property
    def prefill_ms(self) -> float | None:
        """The whole prefill leg as the proxy saw it."""
        return self.server_timing.get("prefill")

    def _after(self, moment: float | None) -> float | None:
        return None if moment is None else 1000 * (moment - self.started)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read one line; fields that a newer version adds are ignored. TypeError, KeyError for anything else."""
        values = {f.name: body[f.name] for f in fields(cls) if f.name in body}
        values["chunks"] = tuple(values.get("chunks", ()))
        report = values.get("report")
        values["report"] = None if report is None else TurnReport.from_json(report)
        for name in ("read_back", "hand_off"):
            values[name] = Transfers.from_json(values.get(name))
        for name in ("prefill_phases", "decode_phases"):
            values[name] = Phases.from_json(values.get(name))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Cell:
    """One leg of one setting that was measured to its end, and what the engines counted meanwhile.

    `engines` holds, by role, how far each number of the control path moved (reads and their reasons, leases, tokens).
    `seconds` is how long the cell took.
    """

    leg: str
    setting: Setting
    repeat: int
    requests: int
    failed: int
    seconds: float
    read_back: Transfers | None = None
    hand_off: Transfers | None = None
    engines: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, Setting, int]:
        return self.leg, self.setting, self.repeat

    def as_json(self) -> dict[str, Any]:
        return {"cell": {**asdict(self), "setting": self.setting._asdict()}}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        values = {f.name: body[f.name] for f in fields(cls) if f.name in body}
        values["setting"] = Setting(**values["setting"])
        for name in ("read_back", "hand_off"):
            values[name] = Transfers.from_json(values.get(name))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Run:
    """What its file says of a run, the requests in the order in which they were made, and the cells that were ended."""

    header: dict[str, Any]
    records: list[Record]
    cells: list[Cell] = field(default_factory=list)


def finished(run: Run) -> Run:
    """What of a run need not be measured again: the cells that ended without a failure, and their requests."""
    cells = [cell for cell in run.cells if not cell.failed]
    keys = {cell.key for cell in cells}
    return Run(run.header, [r for r in run.records if (r.leg, r.setting, r.repeat) in keys], cells)
