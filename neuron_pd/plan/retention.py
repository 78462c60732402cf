"""How many conversations D can keep for their next turn, and for how long."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Retention:
    """What D's pool holds of conversations of one size, and what that means for the two ways to keep them.

    `conversations` fit beside the replies that are running. Lease: they stay in the prefix cache, and the least
    recently used goes first; with turns of other conversations at the planned rate, one is still there after
    `lease_seconds` (None without a rate). Pin: every turn holds its blocks for the TTL or until the next one reads
    them. By Little's law, more than `pin_rate` turns a second of conversations that do not come back pin more than
    the pool, and then requests wait.
    """

    pool_tokens: int
    turn_tokens: int
    running: float
    conversations: int
    lease_seconds: float | None
    pin_ttl: float
    pin_rate: float
    pin_pinned: float | None
    pin_starves: bool | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def retention(pool_tokens: int, turn_tokens: int, ttl: float, rate: float | None, reply_seconds: float) -> Retention:
    """For turns that leave `turn_tokens` (whole blocks) each; `rate` is of the turns that this D serves, a second."""
    running = (rate or 0.0) * reply_seconds
    conversations = max(0, int(pool_tokens / turn_tokens - running))
    pinned = None if rate is None else rate * ttl
    return Retention(
        pool_tokens=pool_tokens,
        turn_tokens=turn_tokens,
        running=running,
        conversations=conversations,
        lease_seconds=conversations / rate if rate else None,
        pin_ttl=ttl,
        pin_rate=conversations / ttl,
        pin_pinned=pinned,
        pin_starves=None if pinned is None else pinned > conversations,
    )
