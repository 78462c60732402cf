"""One JSON line for each request, under a header line that says what was run on what.

Times are seconds of the client's monotonic clock (`time.perf_counter`), raw: figures are derived later. Every line is
written whole and flushed, so a run that is interrupted leaves all that it measured.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from neuron_pd.core.transfer import TurnReport
from neuron_pd.errors import UsageError

FORMAT = "neuron-pd bench"
VERSION = 1

OFF, ON = "off", "on"


@dataclass(frozen=True, slots=True)
class Transfers:
    """What an engine's NIXL metrics counted: transfers that ended, their summed seconds and bytes, and failures."""

    count: float = 0
    seconds: float = 0.0
    bytes: float = 0
    failed: float = 0

    def since(self, before: Self) -> Self | None:
        """What came after `before`; None when a counter went back, because the engine was started anew."""
        pairs = [(getattr(self, f.name), getattr(before, f.name)) for f in fields(self)]
        if any(now < then for now, then in pairs):
            return None
        return type(self)(*(now - then for now, then in pairs))

    @property
    def mean_ms(self) -> float:
        """Milliseconds a transfer. The ranks of a tensor-parallel engine transfer side by side, so this is the wall
        time of a turn's one read."""
        return 1000 * self.seconds / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """One request as the client saw it, and what the servers said of it.

    `first_token` is the first token of any kind (content, reasoning, tool call), `first_content` the first visible
    text; `chunks` holds the arrival of every event of the stream. `history` identifies the messages that were sent.
    `server_timing` is the proxy's `Server-Timing`, in milliseconds by name. `read_back` is what the prefill engine
    read (D→P), `hand_off` what the decode engine read (P→D); None where the engine's metrics were not available.
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
    first_token: float | None = None
    first_content: float | None = None
    chunks: tuple[float, ...] = ()
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

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def ttft_ms(self) -> float | None:
        return self._after(self.first_token)

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
            transfers = values.get(name)
            values[name] = None if transfers is None else Transfers(**transfers)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Run:
    """A records file: its header, and the requests in the order in which they were made."""

    header: dict[str, Any]
    records: list[Record]


class RecordWriter:
    """Writes a records file line by line; a context manager. `write` is the sink that a sweep wants."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Start the file, and the folder it lies in. UsageError when it exists already or cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                raise UsageError(f"{path} exists already: name another file with --out")
            self._file = path.open("x", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
        self._line({"format": FORMAT, "version": VERSION, **header})

    def write(self, record: Record) -> None:
        self._line(record.as_json())

    def _line(self, body: Mapping[str, Any]) -> None:
        # ASCII escapes: a reply may hold characters that some readers take for line ends.
        self._file.write(json.dumps(body, separators=(",", ":")) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_run(path: Path) -> Run:
    """Read a records file; a last line that was cut short is left out. UsageError when it is not one."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    header = _parsed(lines[0]) if lines else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UsageError(f"{path} holds no bench records: name a file that `neuron-pd bench sweep` wrote")
    if header.get("version") != VERSION:
        raise UsageError(
            f"{path} is version {header.get('version')} of the records; this neuron-pd reads version {VERSION}"
        )
    return Run(header, list(_records(path, lines[1:])))


def _records(path: Path, lines: list[bytes]) -> Iterable[Record]:
    for number, line in enumerate(lines, start=2):
        body = _parsed(line)
        try:
            yield Record.from_json(body)
        except (TypeError, KeyError):
            if body is None and number == len(lines) + 1:
                return
            raise UsageError(f"{path}, line {number} is not a bench record") from None


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
