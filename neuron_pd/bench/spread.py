"""How far figures may be trusted: quartiles, and the ratio of two medians with an interval."""

from collections.abc import Hashable, Mapping, Sequence
from random import Random
from statistics import median
from typing import NamedTuple, TypeVar

RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 20260


class Interval(NamedTuple):
    low: float
    high: float


class Ratio(NamedTuple):
    """A ratio of medians, with its 95 % percentile bootstrap interval (Efron and Tibshirani, 1993, chapter 13)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f}× ({self.low:.1f}–{self.high:.1f})"


Key = TypeVar("Key", bound=Hashable)


def quartiles(values: Sequence[float]) -> Interval | None:
    """The middle half of the values, interpolated; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    return Interval(_quantile(ordered, 0.25), _quantile(ordered, 0.75))


def _quantile(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def ratio_of_medians(over: Mapping[Key, float], under: Mapping[Key, float]) -> Ratio | None:
    """The median of `over` by that of `under`; None where either has nothing, or the latter is 0.

    Values under the same key were measured on the same words. Where all have a partner the pairs are resampled, so that
    what differs from turn to turn in both does not widen the interval; else each side by itself.
    """
    if not over or not under or not median(under.values()):
        return None
    random, found = Random(SEED), []
    keys = sorted(over, key=str) if over.keys() == under.keys() else None
    sides = list(over.values()), list(under.values())
    for _ in range(RESAMPLES):
        if keys is not None:
            drawn = random.choices(keys, k=len(keys))
            above, below = median([over[key] for key in drawn]), median([under[key] for key in drawn])
        else:
            above, below = (median(random.choices(side, k=len(side))) for side in sides)
        if below:
            found.append(above / below)
    found.sort()
    tail = (1 - CONFIDENCE) / 2
    value = median(over.values()) / median(under.values())
    return Ratio(value, _quantile(found, tail), _quantile(found, 1 - tail))
