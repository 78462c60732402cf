"""How many requests are with the engines at once: the rest wait in line, a limited number for a limited time.

What cannot wait gets 429 with `Retry-After`, and whoever leaves while waiting leaves no trace. Pages are not counted.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from time import monotonic

from neuron_pd.proxy.errors import Refusal


@dataclass(frozen=True, slots=True)
class Bounds:
    """At most `concurrency` at once (None: any number) and `queue` waiting, each for `seconds`."""

    concurrency: int | None = None
    queue: int = 1024
    seconds: float = 30.0


class Admission:
    """`async with admission:` around the work of one request. First come, first served.

    Raises Refusal 429 instead of letting the request in; `refused` hears of it: "full" or "late".
    """

    def __init__(self, bounds: Bounds, refused: Callable[[str], None]) -> None:
        self.active = 0
        self._bounds = bounds
        self._refused = refused
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._waited = 0.0  # how long the last one that was let in had stood in line, in seconds

    @property
    def waiting(self) -> int:
        return sum(not place.done() for place in self._waiting)

    async def __aenter__(self) -> None:
        limit = self._bounds.concurrency
        if limit is None or self.active < limit:
            self.active += 1
            return
        if self.waiting >= self._bounds.queue:
            raise self._refusal("full", "too many requests are waiting")
        await self._wait()

    async def __aexit__(self, *_: object) -> None:
        """The place goes to the one that has waited longest, else becomes free."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.active -= 1

    async def _wait(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        began = monotonic()
        try:
            async with asyncio.timeout(self._bounds.seconds):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                await self.__aexit__()  # it was given the place in the moment it gave up
            elif place in self._waiting:
                self._waiting.remove(place)
            if isinstance(error, TimeoutError):
                raise self._refusal("late", "this request waited too long for its turn") from None
            raise
        self._waited = monotonic() - began

    def _refusal(self, kind: str, message: str) -> Refusal:
        self._refused(kind)
        seconds = max(1, ceil(self._waited))
        return Refusal(429, message, "too_many_requests", ((b"retry-after", b"%d" % seconds),))
