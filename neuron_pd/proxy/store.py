"""What the proxy remembers between turns: key → which decode engine, under which handle.

Keys are digests (16 bytes); nothing of a prompt is kept. Losing an entry costs a prefill, never an answer.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol


class Known(NamedTuple):
    """A finished turn: the URL of the decode engine that has its KV, and the handle it recorded it under.

    `prefill` is the URL of the engine that prefilled it, whose prefix cache may still hold its `tokens` of prompt.
    """

    decode: str
    handle: str
    prefill: str = ""
    tokens: int = 0


class Store(Protocol):
    """Where finished turns are kept. Implementations are bounded, and a failing one answers as if it were empty."""

    async def first(self, keys: Sequence[bytes]) -> Known | None:
        """The entry of the first key that has one."""

    async def put(self, keys: Sequence[bytes], known: Known) -> None:
        """Keep `known` under each key, in place of what was there."""

    async def drop(self, keys: Sequence[bytes]) -> None:
        """Forget the keys."""

    def __len__(self) -> int:
        """Keys held."""


class MemoryStore:
    """In this process: at most `max_keys`, the least recently used ones go first, and each for `ttl` seconds after its
    last use.

    An entry takes about 400 bytes. Every use makes an entry the youngest, so the oldest are always those that expire
    next: each call drops a few expired ones, and `expire` drops them all.
    """

    def __init__(self, max_keys: int, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_keys = max_keys
        self._ttl = ttl
        self._clock = clock
        self._entries: OrderedDict[bytes, tuple[float, Known]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    async def first(self, keys: Sequence[bytes]) -> Known | None:
        entries, now = self._entries, self._clock()
        for key in keys:
            entry = entries.get(key)
            if entry is None:
                continue
            if entry[0] <= now:
                del entries[key]
                continue
            entries[key] = (now + self._ttl, entry[1])
            entries.move_to_end(key)
            return entry[1]
        return None

    async def put(self, keys: Sequence[bytes], known: Known) -> None:
        entries, now = self._entries, self._clock()
        for key in keys:
            entries[key] = (now + self._ttl, known)
            entries.move_to_end(key)
        self.expire(limit=2 * len(keys))
        while len(entries) > self._max_keys:
            entries.popitem(last=False)

    async def drop(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._entries.pop(key, None)

    def expire(self, limit: int | None = None) -> int:
        """Drop expired entries, at most `limit`; how many were dropped."""
        entries, now, dropped = self._entries, self._clock(), 0
        while entries and (limit is None or dropped < limit):
            key = next(iter(entries))
            if entries[key][0] > now:
                break
            del entries[key]
            dropped += 1
        return dropped
