"""D's records of finished turns: what may still be in its prefix cache, and under which handle a router asks for it.

A record pins nothing. It holds the engine's block hashes (to look the blocks up) and the fingerprint (for P to verify),
so losing one costs a prefill and never an answer. The ledger is bounded in bytes; the least recently used record goes
first.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from neuron_pd.core.fingerprint import Fingerprint

# A record's own objects (dataclasses, dictionary entry, handle): sys.getsizeof on CPython 3.11, rounded up.
RECORD_OVERHEAD_BYTES = 640


@dataclass(frozen=True, slots=True)
class Record:
    """One finished sequence: its blocks' hashes in order, `hash_bytes` each, and a fingerprint of as many digests."""

    hashes: bytes
    hash_bytes: int
    fingerprint: Fingerprint

    def __len__(self) -> int:
        return len(self.hashes) // self.hash_bytes

    def block_hashes(self) -> Iterator[bytes]:
        for start in range(0, len(self.hashes), self.hash_bytes):
            yield self.hashes[start : start + self.hash_bytes]

    @property
    def nbytes(self) -> int:
        return len(self.hashes) + len(self.fingerprint.digests) + RECORD_OVERHEAD_BYTES


class Ledger:
    """Records by handle, together at most `max_bytes`. A record larger than that is not kept."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._records: OrderedDict[str, Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, handle: str) -> bool:
        return handle in self._records

    def put(self, handle: str, record: Record) -> None:
        """Keep `record` under `handle`, in place of an earlier one, and drop the least recently used over the bound."""
        self.drop(handle)
        if record.nbytes > self.max_bytes:
            return
        self._records[handle] = record
        self.nbytes += record.nbytes
        while self.nbytes > self.max_bytes:
            _, oldest = self._records.popitem(last=False)
            self.nbytes -= oldest.nbytes

    def get(self, handle: str) -> Record | None:
        """The record of `handle`, which becomes the most recently used."""
        if (record := self._records.get(handle)) is not None:
            self._records.move_to_end(handle)
        return record

    def drop(self, handle: str) -> bool:
        """Forget `handle`. False when it was not known."""
        if (record := self._records.pop(handle, None)) is None:
            return False
        self.nbytes -= record.nbytes
        return True
