"""From what was counted in each round to the rows of the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Any

ENGINE = "engine alone"
BUSY = 0.95  # from this share of a core on, whatever runs there may be what limits
SHARED = 0.85  # below it, a proxy under load had to share its core


@dataclass(frozen=True, slots=True)
class Round:
    """One window of load on one contender. Times in seconds."""

    requests: int
    failed: int
    seconds: float
    cpu: float
    engine_cpu: float
    client_cpu: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


@dataclass(frozen=True, slots=True)
class Burst:
    """Clients that arrived at once: seconds to each one's first chunk, and the processor time for all chunks."""

    first_bytes: Sequence[float]
    chunks: int
    cpu: float
    failed: int


@dataclass(slots=True)
class Measured:
    """Everything about one contender; `reason` says why there is nothing."""

    name: str
    rounds: list[Round] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)
    reason: str | None = None

    def row(self, shared_core: bool) -> dict[str, Any]:
        """The row as JSON. `shared_core`: engines and client are on one core together."""
        if not self.rounds:
            return {"name": self.name, "requests_per_s": None, "reason": self.reason or "not measured"}
        rates = sorted(one.rate for one in self.rounds)
        row: dict[str, Any] = {
            "name": self.name,
            "requests_per_s": round(median(rates), 1),
            "spread": [round(rates[0], 1), round(rates[-1], 1)],
            "rounds": [round(one.rate, 1) for one in self.rounds],
            "failed": sum(one.failed for one in self.rounds) + sum(one.failed for one in self.bursts),
            "cpu_us_per_request": round(median(one.cpu / max(1, one.requests) for one in self.rounds) * 1e6, 1),
            "core_busy": round(median(one.cpu / one.seconds for one in self.rounds), 2),
            "others_busy": round(median(_others(one, shared_core) for one in self.rounds), 2),
        }
        if self.bursts:
            row |= self._of_bursts()
        return row

    def _of_bursts(self) -> dict[str, Any]:
        firsts = sorted(second for burst in self.bursts for second in burst.first_bytes)
        return {
            "cpu_us_per_chunk": round(median(burst.cpu / max(1, burst.chunks) for burst in self.bursts) * 1e6, 2),
            "first_byte_ms": {
                "median": round(percentile(firsts, 0.5) * 1e3, 2),
                "p99": round(percentile(firsts, 0.99) * 1e3, 2),
            },
        }


def ratios(ours: Measured, peer: Measured) -> dict[str, float] | None:
    """How many times `peer`'s requests per second ours are: round by round, so that noise hits both alike."""
    pairs = [a.rate / b.rate for a, b in zip(ours.rounds, peer.rounds, strict=False) if b.rate]
    if not pairs:
        return None
    return {"median": round(median(pairs), 2), "least": round(min(pairs), 2), "most": round(max(pairs), 2)}


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know before believing the rows."""
    said = []
    for row in rows:
        if row.get("requests_per_s") is None:
            said.append(f"{row['name']} was not measured: {row['reason']}")
        elif row["others_busy"] > BUSY:
            said.append(f"{row['name']}: engines and client used their core up; its own figure may be higher")
        elif row["core_busy"] < SHARED and row["name"] != ENGINE:
            said.append(f"{row['name']}: it got {row['core_busy']:.0%} of its core; was the machine busy otherwise?")
        if row.get("failed"):
            said.append(f"{row['name']}: {row['failed']} requests failed")
    return said


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of an ordered sequence lies (nearest rank); 0 for an empty one."""
    if not ordered:
        return 0.0
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _others(one: Round, shared_core: bool) -> float:
    if shared_core:
        return (one.engine_cpu + one.client_cpu) / one.seconds
    return max(one.engine_cpu, one.client_cpu) / one.seconds
