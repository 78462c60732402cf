"""What the ways to serve a turn cost, in seconds, learned from what they took.

prefill    fixed + per_token·n + per_pair·(n·m + n²/2)       n new tokens after m tokens of context: every new token
                                                             passes the weights once and attends to all before it
transfer   latency + per_byte·bytes                          one NIXL READ, queueing and notification included

Coefficients are never negative. They are fitted by least squares over the last observations, newer ones
counting more, or come from a calibration (`neuron-pd plan`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

WINDOW = 64  # observations that are kept
FADE_PREFILL, FADE_TRANSFER = 0.95, 0.8  # what an observation counts beside the one after it
MUCH_FASTER = 0.5  # of the time that a read was expected to take
FEWEST = 4  # observations before a fit is believed
RIDGE = 1e-9  # of the diagonal: equations that observations leave open have the smallest solution


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Computing a prompt. Coefficients in seconds, seconds a token, and seconds a pair of tokens."""

    fixed: float
    per_token: float
    per_pair: float = 0.0

    def seconds(self, new: float, context: float = 0) -> float:
        """For `new` tokens after `context` tokens whose KV is there; 0 for none."""
        if new <= 0:
            return 0.0
        return self.fixed + self.per_token * new + self.per_pair * _pairs(new, context)


@dataclass(frozen=True, slots=True)
class TransferCost:
    """Reading KV from a peer. Coefficients in seconds and seconds a byte."""

    latency: float
    per_byte: float

    def seconds(self, nbytes: float) -> float:
        """For one read of `nbytes`; 0 for nothing."""
        return self.latency + self.per_byte * nbytes if nbytes > 0 else 0.0


Cost = TypeVar("Cost")


class Meter(Generic[Cost]):
    """Observed durations of one kind of work, and the cost that fits the last `WINDOW` of them.

    Each counts `fade` times what the next one counts.
    """

    def __init__(self, cost: Callable[..., Cost], fade: float) -> None:
        self._make = cost
        self._fade = fade
        self._seen: deque[tuple[tuple[float, ...], float]] = deque(maxlen=WINDOW)
        self._fitted: Cost | None = None  # to what had been seen when it was last asked for
        self._outdated = False

    def __len__(self) -> int:
        return len(self._seen)

    def observe(self, features: Sequence[float], seconds: float) -> None:
        """Work described by `features` (one a coefficient) took `seconds`."""
        self._seen.append((tuple(features), seconds))
        self._outdated = True

    def forget(self) -> None:
        self._seen.clear()
        self._fitted = None

    @property
    def cost(self) -> Cost | None:
        """None before `FEWEST` observations."""
        if self._outdated and len(self._seen) >= FEWEST:
            self._outdated = False
            weights = [self._fade ** (age / 2) for age in reversed(range(len(self._seen)))]
            rows = [[feature * weight for feature in row] for (row, _), weight in zip(self._seen, weights, strict=True)]
            values = [seconds * weight for (_, seconds), weight in zip(self._seen, weights, strict=True)]
            self._fitted = self._make(*fit(rows, values))
        return self._fitted


class PrefillMeter(Meter[PrefillCost]):
    """Learns what computing costs on an engine."""

    def __init__(self) -> None:
        super().__init__(PrefillCost, FADE_PREFILL)

    def computed(self, new: int, context: int, seconds: float) -> None:
        self.observe((1.0, new, _pairs(new, context)), seconds)


class TransferMeter(Meter[TransferCost]):
    """Learns what reading from one peer costs."""

    def __init__(self) -> None:
        super().__init__(TransferCost, FADE_TRANSFER)

    def read(self, nbytes: int, seconds: float) -> None:
        """A read that is much faster than expected: the link is another one now, and what was seen before is forgotten.

        Expected is the cost as it was last asked for: a fit for every read would make a turn of the proxy a fifth
        dearer. Of a link that was too slow no more than a read now and then is seen, so an average would be late.
        """
        if self._fitted is not None and seconds < MUCH_FASTER * self._fitted.seconds(nbytes):
            self.forget()
        self.observe((1.0, nbytes), seconds)


def fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Non-negative coefficients x with rows·x ≈ values in least squares.

    A coefficient that comes out negative is taken as 0 and the others are fitted again, the most negative one first.
    """
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(len(rows[0]))]
    kept = list(range(len(scale)))
    while kept:
        scaled = [[row[i] / scale[i] for i in kept] for row in rows]
        solution = _solve(*_normal_equations(scaled, values))
        if min(solution) >= 0:
            by_column = dict(zip(kept, solution, strict=True))
            return [by_column.get(i, 0.0) / scale[i] for i in range(len(scale))]
        kept.pop(solution.index(min(solution)))
    return [0.0] * len(scale)


def _pairs(new: float, context: float) -> float:
    return new * context + new * new / 2


def _normal_equations(rows: list[list[float]], values: Sequence[float]) -> tuple[list[list[float]], list[float]]:
    size = range(len(rows[0]))
    matrix = [[sum(row[i] * row[j] for row in rows) for j in size] for i in size]
    for i in size:
        matrix[i][i] *= 1 + RIDGE
    return matrix, [sum(row[i] * value for row, value in zip(rows, values, strict=True)) for i in size]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination; `matrix` is positive definite, so no pivoting is needed."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1, size):
            factor = matrix[j][i] / matrix[i][i] if matrix[i][i] else 0.0
            matrix[j] = [a - factor * b for a, b in zip(matrix[j], matrix[i], strict=True)]
            right[j] -= factor * right[i]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(matrix[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (right[i] - known) / matrix[i][i] if matrix[i][i] else 0.0
    return solution
