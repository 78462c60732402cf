"""The ways to serve a turn, and what they took so far: read back or recompute on P, or compute the rest on D.

A direct turn skips P: D, whose prefix cache holds the history, prefills what is new. It is chosen where the history in
the request is the one that D recorded, D still holds it (it was just leased), and `core.decision` expects its first
token sooner, with what the replies that D is streaming lose meanwhile counted in.

Figures are in tokens: those of a leg's body are estimated from its bytes by what P has counted before.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from neuron_pd.core.cost import PrefillMeter, TransferCost, TransferMeter
from neuron_pd.core.decision import Costs, Path, Prompt, cheapest, expected
from neuron_pd.core.transfer import TurnReport

BYTES_PER_TOKEN = 4.0  # before P has counted a prompt
SHARE = 0.1  # of a new figure in a moving average
FREE = TransferCost(0.0, 0.0)
CANNOT_PREFILL = frozenset(("neuron",))  # accelerators whose decode engines are compiled for decoding


class Direct(StrEnum):
    """When D may serve a turn alone: never, where it is expected to be faster, or whenever it holds the history."""

    OFF = "off"
    AUTO = "auto"
    ALWAYS = "always"


@dataclass(slots=True)
class Average:
    """A moving average; `value` is what is taken before the first figure."""

    value: float
    seen: bool = False

    def add(self, figure: float) -> None:
        self.value = self.value + SHARE * (figure - self.value) if self.seen else figure
        self.seen = True


@dataclass(slots=True)
class Meters:
    """What one engine took: to compute prompts, to read from D (on P), and to take over from P (on D)."""

    prefill: PrefillMeter = field(default_factory=PrefillMeter)
    transfer: TransferMeter = field(default_factory=TransferMeter)


@dataclass(frozen=True, slots=True)
class Offered:
    """A turn that D could serve alone, in tokens: `held` leading ones are at D, `new` follow; P holds `local`.

    `others` is how many replies D is streaming, `queued` how many tokens P has to compute before it gets to this turn.
    """

    held: int
    new: int
    local: int
    others: int
    queued: int = 0


class Ways:
    """Estimates, learns and decides. One for all turns."""

    def __init__(self, mode: Direct = Direct.OFF) -> None:
        self.mode = mode
        self._bytes_per_token = Average(BYTES_PER_TOKEN)
        self._compute = Average(0.0)  # seconds a token
        self._read = Average(0.0)

    def tokens(self, nbytes: int) -> int:
        """About how many tokens a body of `nbytes` is; at least one."""
        return max(1, round(nbytes / self._bytes_per_token.value))

    @property
    def read_share(self) -> float:
        """What reading a token costs, as a share of computing it; 1 until both were measured."""
        if not (self._compute.seen and self._read.seen and self._compute.value):
            return 1.0
        return min(1.0, self._read.value / self._compute.value)

    # ---- learning

    def prefilled(self, meters: Meters, report: TurnReport, nbytes: int, seconds: float) -> None:
        """P served a leg of `nbytes` in `seconds`. Where P does not say how long it read, the rest of it is taken."""
        if report.prompt <= 0:
            return
        self._bytes_per_token.add(nbytes / report.prompt)
        new = max(1, report.prompt - report.reused - report.local)
        if report.reused == 0:
            self._compute.add(seconds / new)
            meters.prefill.computed(new, report.local, seconds)
            return
        reading = report.read_ms / 1000 or max(0.0, seconds - new * self._compute.value)
        self._read.add(reading / report.reused)
        meters.transfer.read(report.reused, reading)

    def handed_off(self, meters: Meters, lacking: int, seconds: float) -> None:
        """D's first token came `seconds` after it was asked, `lacking` tokens of KV were read from P."""
        meters.transfer.read(max(1, lacking), seconds)

    def served(self, meters: Meters, turn: "Offered", seconds: float) -> None:
        """The first token of a direct turn came after `seconds`."""
        meters.prefill.computed(turn.new, turn.held, seconds)

    # ---- deciding

    def serve_directly(self, prefill: Meters, decode: Meters, turn: Offered) -> bool:
        """Whether D serves a turn that it could."""
        if self.mode is Direct.ALWAYS:
            return True
        computing = prefill.prefill.cost
        if computing is None:
            return False
        costs = Costs(
            bytes_per_token=1.0,
            prefill=computing,
            read_back=prefill.transfer.cost or FREE,
            hand_off=decode.transfer.cost or FREE,
            direct=decode.prefill.cost or computing,
            others=turn.others,
        )
        waiting = computing.per_token * turn.queued
        ways = expected(Prompt(turn.held + turn.new, turn.held, turn.local), costs)
        return cheapest({way: cost + (way is not Path.DIRECT) * waiting for way, cost in ways.items()}) is Path.DIRECT
