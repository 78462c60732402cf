"""A circuit breaker: an engine that fails leaves the rotation, and comes back by itself.

closed ── `threshold` failures in a row, or a trip ──► open ── after the cool-down ──► half-open
half-open: one request is let through; success ──► closed, failure ──► open, with twice the cool-down
"""

from collections.abc import Callable
from enum import StrEnum


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Decides whether an engine may be sent requests. `cooldown` and `max_cooldown` in seconds."""

    __slots__ = ("_base", "_clock", "_failures", "_max", "_retry_at", "_threshold", "_trial", "cooldown")

    def __init__(
        self, clock: Callable[[], float], threshold: int = 3, cooldown: float = 1.0, max_cooldown: float = 30.0
    ) -> None:
        self._clock = clock
        self._threshold = threshold
        self._base = self.cooldown = cooldown
        self._max = max_cooldown
        self._failures = 0
        self._retry_at: float | None = None
        self._trial: float | None = None

    @property
    def state(self) -> State:
        if self._retry_at is None:
            return State.CLOSED
        return State.OPEN if self._clock() < self._retry_at else State.HALF_OPEN

    @property
    def allows(self) -> bool:
        """Whether a request may be sent now. In half-open: only while no trial is under way."""
        if self._retry_at is None:
            return True
        now = self._clock()
        # A trial whose outcome never came (its client left) does not close the door for good.
        return now >= self._retry_at and (self._trial is None or now >= self._trial + self.cooldown)

    def sent(self) -> None:
        """A request is on its way."""
        if self._retry_at is not None:
            self._trial = self._clock()

    def succeeded(self) -> None:
        self._failures = 0
        self._retry_at = self._trial = None
        self.cooldown = self._base

    def failed(self) -> None:
        self._failures += 1
        if self._retry_at is not None:
            if self._trial is not None or self._clock() >= self._retry_at:
                self.cooldown = min(self._max, 2 * self.cooldown)
                self._open()
        elif self._failures >= self._threshold:
            self._open()

    def trip(self) -> None:
        """Open at once: the engine refused the connection."""
        self._failures = max(self._failures, self._threshold - 1)
        self.failed()

    def _open(self) -> None:
        self._trial = None
        self._retry_at = self._clock() + self.cooldown
