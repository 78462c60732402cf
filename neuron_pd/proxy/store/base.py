"""The contract of a store of conversations."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

KEY_BYTES = 15  # of a digest: 120 bits, the most that fits CPython's 48-byte objects


class Known(NamedTuple):
    """A finished turn: the URL of the decode engine that has its KV, and the handle it recorded it under (32 hex).

    `prefill` is the URL of the engine that prefilled it, whose prefix cache may still hold its `tokens` of prompt.
    """

    decode: str
    handle: str
    prefill: str = ""
    tokens: int = 0


class Offer(NamedTuple):
    """Transfer parameters (a JSON object) that may be used once, within `seconds`."""

    params: bytes
    seconds: float


class Store(Protocol):
    """Where finished turns are kept. Bounded; an entry lasts some time after its last use.

    A store that fails answers as if it were empty, soon, and counts it: its calls raise nothing.
    """

    async def first(self, keys: Sequence[bytes]) -> Known | None:
        """The entry of the first key that has one."""

    async def put(
        self, keys: Sequence[bytes], known: Known, offer: Offer | None = None, forget: Sequence[bytes] = ()
    ) -> None:
        """Keep `known` under each key, in place of what was there, and `offer` under its handle; drop `forget`."""

    async def take(self, handle: str) -> bytes | None:
        """The offer of a handle. Of all that ask, in all processes, one gets it."""

    async def drop(self, keys: Sequence[bytes]) -> list[Known]:
        """Forget the keys: what was known under them, each entry once."""

    def expire(self) -> None:
        """Free what has expired, where that does not happen by itself."""

    async def close(self) -> None:
        """Let go of connections."""
