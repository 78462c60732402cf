"""Read leases: D holds the blocks of a finished turn for one reader, and for no longer.

    open ──claim──► claimed ─┬─ read       the worker heard that the claimant has read
     │                       │
     └───────────────────────┼─ released   given back unread: by the router while nobody claimed it, or by its claimant
                             ├─ given up   unclaimed, and its blocks were wanted for something else
                             └─ expired    its deadline passed

A reader claims a lease before it reads, and the first claim is the only one: so no lease is read twice, and none is
taken away under a reader. A claim prolongs the lease, and repeating it does so again. Once a lease is closing (the last
three) every claim fails, and its blocks are freed as soon as the workers have let go of it. Each lease ends once.

Claims and releases come from the thread that answers peers, everything else from the engine's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Generic, NamedTuple, TypeVar
from uuid import uuid4

Block = TypeVar("Block")

ID_PREFIX = "neuron-pd-lease-"


class LeaseEnd(StrEnum):
    READ = "read"
    RELEASED = "released"
    GIVEN_UP = "given_up"
    EXPIRED = "expired"


class Refused(StrEnum):
    """Why a claim failed."""

    GONE = "gone"  # unknown here, ended, or closing
    TAKEN = "taken"  # another reader has claimed it


@dataclass(slots=True)
class Lease(Generic[Block]):
    """`deadline` is in seconds on the clock of the engine that opened it. A retained one pins a turn between turns."""

    id: str
    handle: str
    blocks: tuple[Block, ...]
    deadline: float
    retained: bool = False
    reader: str | None = None
    closing: LeaseEnd | None = None


class Ended(NamedTuple, Generic[Block]):
    lease: Lease[Block]
    how: LeaseEnd


class Leases(Generic[Block]):
    """The leases of one engine. Who opens one pins its blocks, and unpins them when `end` returns it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: dict[str, Lease[Block]] = {}
        self._closing: list[str] = []
        self.ended: dict[LeaseEnd, int] = dict.fromkeys(LeaseEnd, 0)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._open

    @property
    def pinned_blocks(self) -> int:
        """Blocks held by leases; one that two leases hold counts twice."""
        return sum(len(lease.blocks) for lease in self._open.values())

    @property
    def retained_blocks(self) -> int:
        """Those of them that are held between turns and not yet on their way back."""
        return sum(len(lease.blocks) for lease in self._open.values() if lease.retained and not lease.closing)

    def open(
        self, handle: str, blocks: Sequence[Block], deadline: float, *, lease_id: str = "", retained: bool = False
    ) -> Lease[Block]:
        lease = Lease(lease_id or ID_PREFIX + uuid4().hex, handle, tuple(blocks), deadline, retained)
        with self._lock:
            self._open[lease.id] = lease
        return lease

    def claim(self, lease_id: str, reader: str, now: float, seconds: float) -> float | Refused:
        """`reader` is about to read: the deadline until which it may, at least `seconds` away; or why it may not."""
        with self._lock:
            lease = self._open.get(lease_id)
            if lease is None or lease.closing or now >= lease.deadline:
                return Refused.GONE
            if lease.reader not in (None, reader):
                return Refused.TAKEN
            lease.reader = reader
            lease.deadline = max(lease.deadline, now + seconds)
            return lease.deadline

    def renew(self, name: str, deadline: float, now: float) -> list[Lease[Block]]:
        """Prolong a lease, or all those of a handle, to `deadline`; which those are."""
        with self._lock:
            found = [lease for lease in self._named(name) if now < lease.deadline]
            for lease in found:
                lease.deadline = max(lease.deadline, deadline)
            return found

    def give_back(self, name: str, reader: str | None = None) -> int:
        """Nobody will read a lease (or those of a handle): how many are closing now.

        Not those that someone other than `reader` has claimed: that read may be under way.
        """
        with self._lock:
            return sum(self._close(lease, LeaseEnd.RELEASED, reader) for lease in self._named(name))

    def give_up_oldest(self) -> bool:
        """Close the retained lease that was opened first and is not claimed; False where there is none."""
        with self._lock:
            return any(lease.retained and self._close(lease, LeaseEnd.GIVEN_UP) for lease in self._open.values())

    def expire(self, now: float) -> list[Lease[Block]]:
        """Close what is past its deadline, claimed or not; which those are."""
        with self._lock:
            due = [lease for lease in self._open.values() if not lease.closing and now >= lease.deadline]
            for lease in due:
                self._close(lease, LeaseEnd.EXPIRED, lease.reader)
            return due

    def take_closing(self) -> list[str]:
        """What began to close since the last call: the workers are to let go of these."""
        with self._lock:
            closing, self._closing = self._closing, []
            return closing

    def end(self, lease_id: str) -> Ended[Block] | None:
        """No worker knows this lease any more: it, to be unpinned, and how it ended. None when it ended before."""
        with self._lock:
            lease = self._open.pop(lease_id, None)
            if lease is None:
                return None
            how = lease.closing or LeaseEnd.READ
            self.ended[how] += 1
            return Ended(lease, how)

    def _named(self, name: str) -> list[Lease[Block]]:
        if name in self._open:
            return [self._open[name]]
        return [lease for lease in self._open.values() if lease.handle == name]

    def _close(self, lease: Lease[Block], how: LeaseEnd, reader: str | None = None) -> bool:
        if lease.closing or lease.reader not in (None, reader):
            return False
        lease.closing = how
        self._closing.append(lease.id)
        return True
