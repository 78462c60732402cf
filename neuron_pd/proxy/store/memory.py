"""Conversations in this process."""

import struct
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from neuron_pd.proxy.store.base import Known, Offer

GENERATIONS = 4
TICKS = 16  # a second
OFFER_BYTES = 256 * 1024 * 1024
MAX_URLS = 65_535
_ENTRY = struct.Struct("<IIHH16s")  # last use in ticks, tokens, decode, prefill, handle


class MemoryStore:
    """At most `most` keys, each for `ttl` seconds after its last use.

    An entry is two small objects and a slot in a dictionary: about 160 bytes a key. Entries live in generations, a
    plain dictionary each: what is used moves to the youngest, and where room is needed the oldest goes as a whole, so
    that at least three quarters of `most` are kept, the latest ones. Offers take their own length, 256 MiB in all.
    """

    def __init__(self, most: int, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._ttl = ttl * TICKS
        self._clock = clock
        self._generations: deque[dict[bytes, bytes]] = deque([{}])
        self._ends: deque[float] = deque()  # the last use of each but the youngest, in ticks
        self._began = self._used = self._now()  # of the youngest: when it was begun, and its last use
        self._urls: list[str] = []
        self._numbers: dict[str, int] = {}
        self._offers: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._offered = 0

    def __len__(self) -> int:
        return sum(map(len, self._generations))

    async def first(self, keys: Sequence[bytes]) -> Known | None:
        now = self._now()
        for key in keys:
            entry = self._pop(key, now)
            if entry is not None:
                self._generations[0][key] = struct.pack("<I", int(now)) + entry[4:]
                self._used = now
                self._turn_over(now)
                return self._known(entry)
        return None

    async def put(
        self, keys: Sequence[bytes], known: Known, offer: Offer | None = None, forget: Sequence[bytes] = ()
    ) -> None:
        now, numbers = self._now(), self._numbers
        if known.decode not in numbers or known.prefill not in numbers:
            self._number(known.decode, known.prefill)
        decode, prefill = numbers[known.decode], numbers[known.prefill]
        entry = _ENTRY.pack(int(now), known.tokens, decode, prefill, bytes.fromhex(known.handle))
        for key in forget:
            self._pop(key, now)
        for key in keys:
            self._pop(key, now)
            self._generations[0][key] = entry
        self._used = now
        if offer is not None:
            self._offer(known.handle, offer)
        self._turn_over(now)

    async def take(self, handle: str) -> bytes | None:
        deadline, params = self._withdraw(handle)
        return params if self._clock() < deadline else None

    async def drop(self, keys: Sequence[bytes]) -> list[Known]:
        now = self._now()
        found = [self._known(entry) for key in keys if (entry := self._pop(key, now)) is not None]
        return list(dict.fromkeys(found))

    def expire(self) -> None:
        self._turn_over(self._now())
        deadline = self._clock()
        for handle in [handle for handle, (end, _) in self._offers.items() if end <= deadline]:
            self._withdraw(handle)

    async def close(self) -> None:
        """Nothing to let go of."""

    def _turn_over(self, now: float) -> None:
        """Close the youngest generation when it is full or old; drop the oldest while they are over, or too many."""
        generations, ends = self._generations, self._ends
        if len(generations[0]) * GENERATIONS >= self._most or (now - self._began) * GENERATIONS >= self._ttl:
            if generations[0]:
                generations.appendleft({})
                ends.appendleft(self._used)
            self._began = now
        while ends and (ends[-1] + self._ttl <= now or len(self) > self._most):
            generations.pop()
            ends.pop()

    def _now(self) -> float:
        return self._clock() * TICKS

    def _pop(self, key: bytes, now: float) -> bytes | None:
        """Take an entry out; None where there is none, or it has expired."""
        for generation in self._generations:
            entry = generation.pop(key, None)
            if entry is not None:
                used: int = struct.unpack_from("<I", entry)[0]
                return entry if now < used + self._ttl else None
        return None

    def _known(self, entry: bytes) -> Known:
        _, tokens, decode, prefill, handle = _ENTRY.unpack(entry)
        return Known(self._urls[decode], handle.hex(), self._urls[prefill], tokens)

    def _number(self, *urls: str) -> None:
        """Engines are few: each URL is kept once. After 65,000 that came and went, everything is forgotten."""
        if len(self._urls) > MAX_URLS - len(urls):
            self._urls.clear()
            self._numbers.clear()
            self._generations, self._ends = deque([{}]), deque()
        for url in urls:
            if url not in self._numbers:
                self._numbers[url] = len(self._urls)
                self._urls.append(url)

    def _offer(self, handle: str, offer: Offer) -> None:
        self._withdraw(handle)
        self._offers[handle] = self._clock() + offer.seconds, offer.params
        self._offered += len(offer.params)
        while self._offered > OFFER_BYTES:
            self._withdraw(next(iter(self._offers)))

    def _withdraw(self, handle: str) -> tuple[float, bytes]:
        deadline, params = self._offers.pop(handle, (0.0, b""))
        self._offered -= len(params)
        return deadline, params
