"""The token-block hash chain that lets P know, before it reads, that D's blocks hold the KV of its own prompt.

Digest i covers tokens 0 … (i+1)·block_size - 1 and everything else that changes KV (the seed: model, revision,
adapter, salt; and what stands in place of tokens: images, audio), keyed with the cluster's control token: BLAKE2b
(RFC 7693) in keyed mode, one running state, 8 bytes a digest. Two sequences agree on digest i exactly when they agree
on the whole prefix up to there. Tokens enter as little-endian uint32; the items of a block enter before its tokens,
each as `ITEM` (no token has that id), its position, the length of its hash in words, and its hash, padded with zeros.
On the wire: {"block_size": tokens, "digests": base64 of the digests in order}.
"""

import hashlib
import sys
from array import array
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from neuron_pd.errors import TransferParamsError

DIGEST_BYTES = 8
ITEM = 0xFFFFFFFF


class Item(NamedTuple):
    """An image, a sound, a video …: the position of its first token in the prompt, and the hash of its content."""

    position: int
    content: str

    def encoded(self) -> bytes:
        content = self.content.encode()
        content += bytes(-len(content) % 4)
        return b"".join(n.to_bytes(4, "little") for n in (ITEM, self.position, len(content) // 4)) + content


@dataclass(frozen=True, slots=True)
class Seed:
    """Everything besides tokens that the KV of a request depends on, and the key of the chain."""

    model: str
    revision: str = ""
    adapter: str = ""
    cache_salt: str = ""
    key: str = ""

    def hasher(self) -> "hashlib.blake2b":
        key = hashlib.sha256(self.key.encode()).digest() if self.key else b""
        state = hashlib.blake2b(key=key, digest_size=DIGEST_BYTES, person=b"neuron-pd kv 1")
        for part in (self.model, self.revision, self.adapter, self.cache_salt):
            encoded = part.encode()
            state.update(len(encoded).to_bytes(8, "little") + encoded)
        return state


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The chain over a sequence's whole blocks: `digests` holds 8 bytes for each, `block_size` is in tokens."""

    block_size: int
    digests: bytes

    def __len__(self) -> int:
        return len(self.digests) // DIGEST_BYTES

    @property
    def num_tokens(self) -> int:
        """Tokens covered: whole blocks only."""
        return len(self) * self.block_size

    @classmethod
    def of(
        cls, tokens: Sequence[int], block_size: int, seed: Seed, limit: int | None = None, items: Sequence[Item] = ()
    ) -> Self:
        """The chain over the first whole blocks of `tokens`, at most `limit` of them, with the `items` in them."""
        count = len(tokens) // block_size
        if limit is not None:
            count = min(count, limit)
        words = array("I", tokens[: count * block_size])
        if sys.byteorder == "big":
            words.byteswap()
        data = memoryview(words.tobytes())
        stride = block_size * words.itemsize
        state = seed.hasher()
        digests = []
        by_block = _by_block(items, block_size)
        for start in range(0, count * stride, stride):
            if by_block and (encoded := by_block.get(start // stride)):
                state.update(encoded)
            state.update(data[start : start + stride])
            digests.append(state.copy().digest())
        return cls(block_size, b"".join(digests))

    def first(self, blocks: int) -> Self:
        """The fingerprint of the first `blocks` blocks."""
        return type(self)(self.block_size, self.digests[: blocks * DIGEST_BYTES])

    def matches(self, tokens: Sequence[int], seed: Seed, items: Sequence[Item] = ()) -> int:
        """How many leading tokens of `tokens` this fingerprint vouches for: a multiple of its block size."""
        mine = type(self).of(tokens, self.block_size, seed, limit=len(self), items=items)
        return self._common_blocks(mine) * self.block_size

    def _common_blocks(self, other: Self) -> int:
        """Longest common prefix by bisection: a chain that agrees at block i agrees everywhere before it."""
        low, high = 0, min(len(self), len(other))
        while low < high:
            middle = (low + high + 1) // 2
            end = middle * DIGEST_BYTES
            if self.digests[end - DIGEST_BYTES : end] == other.digests[end - DIGEST_BYTES : end]:
                low = middle
            else:
                high = middle - 1
        return low

    def as_json(self) -> dict[str, Any]:
        return {"block_size": self.block_size, "digests": b64encode(self.digests).decode()}

    @classmethod
    def from_json(cls, body: Any) -> Self:
        """Raises TransferParamsError (reason "malformed") for anything that is not a fingerprint."""
        try:
            block_size, digests = body["block_size"], b64decode(body["digests"], validate=True)
        except (TypeError, KeyError, ValueError, Base64Error) as error:
            raise TransferParamsError("malformed", "not a fingerprint") from error
        if not isinstance(block_size, int) or isinstance(block_size, bool) or block_size < 1:
            raise TransferParamsError("malformed", "a fingerprint's block size must be a whole number of tokens")
        if len(digests) % DIGEST_BYTES:
            raise TransferParamsError("malformed", "a fingerprint's digests must be 8 bytes each")
        return cls(block_size, digests)


def _by_block(items: Sequence[Item], block_size: int) -> dict[int, bytes]:
    blocks: dict[int, bytes] = {}
    for item in sorted(items):
        block = item.position // block_size
        blocks[block] = blocks.get(block, b"") + item.encoded()
    return blocks
