"""What a simulation found, over the turns from the second on: a conversation's first turn can reuse nothing."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import fmean
from typing import Any

from neuron_pd.core.decision import Path
from neuron_pd.plan.simulation.workload import Policy


@dataclass(slots=True)
class Served:
    """One turn, tokens and seconds. `history` is the part of the prompt that had been computed or generated before.

    `offered`: D held the conversation for P. `reused` tokens came from D, `local` from P's own cache. The waits are
    part of `ttft`: for P, for D's blocks, and of the latter what was only because blocks were pinned.
    """

    conversation: int
    number: int
    prompt: int
    history: int
    path: Path = Path.RECOMPUTE
    offered: bool = False
    reused: int = 0
    local: int = 0
    ttft: float = 0.0
    prefill_wait: float = 0.0
    decode_wait: float = 0.0
    retention_wait: float = 0.0

    @property
    def computed(self) -> int:
        return self.prompt - self.reused - self.local

    @property
    def recomputed(self) -> int:
        return max(0, self.history - self.reused - self.local)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Every turn that was served, in order of its first token, and the run as a whole."""

    policy: Policy
    served: Sequence[Served]
    seconds: float
    prefill_busy: float
    peak_pinned: float

    @property
    def later(self) -> list[Served]:
        return [turn for turn in self.served if turn.number > 1]

    def ttft(self, share: float) -> float:
        """The TTFT in seconds that `share` of the later turns stay within (nearest rank)."""
        ordered = sorted(turn.ttft for turn in self.later)
        return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0

    def as_json(self) -> dict[str, Any]:
        later = self.later
        history = sum(turn.history for turn in later)
        return {
            "policy": asdict(self.policy),
            "requests": len(self.served),
            "seconds": self.seconds,
            "ttft_ms_mean": 1000 * _mean(later, lambda turn: turn.ttft),
            **{f"ttft_ms_p{percent}": 1000 * self.ttft(percent / 100) for percent in (50, 90, 99)},
            "hit_rate": _mean(later, lambda turn: float(turn.reused + turn.local > 0)),
            "reused_share": 1 - sum(turn.recomputed for turn in later) / history if history else 0.0,
            "recomputed_tokens": sum(turn.recomputed for turn in later),
            "prefill_wait_ms_mean": 1000 * _mean(later, lambda turn: turn.prefill_wait),
            "decode_wait_ms_mean": 1000 * _mean(later, lambda turn: turn.decode_wait),
            "retention_waits": sum(turn.retention_wait > 0 for turn in self.served),
            "retention_wait_s_max": max((turn.retention_wait for turn in self.served), default=0.0),
            "retention_wait_s_total": sum(turn.retention_wait for turn in self.served),
            "prefill_utilisation": self.prefill_busy / self.seconds if self.seconds else 0.0,
            "peak_pinned_share": self.peak_pinned,
            "paths": {str(path): sum(turn.path is path for turn in later) for path in Path},
        }


def _mean(turns: Sequence[Served], number: Callable[[Served], float]) -> float:
    return fmean(map(number, turns)) if turns else 0.0
