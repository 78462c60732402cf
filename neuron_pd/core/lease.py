"""Read leases: D holds the blocks of a record for one read by P, and for no longer.

                  ┌─ read      P's completion notification arrived
    (open) ───────┼─ released  the router gave it back unread
                  └─ expired   neither happened within the lease's time

A lease pins its blocks once when it opens and unpins them once when it ends, whichever way it ends; what comes later
for the same lease changes nothing. Two leases over the same blocks are independent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar
from uuid import uuid4

Block = TypeVar("Block")

ID_PREFIX = "neuron-pd-lease-"


class LeaseEnd(StrEnum):
    READ = "read"
    RELEASED = "released"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Lease(Generic[Block]):
    """An open lease. `deadline` is in seconds on the clock of the engine that opened it."""

    id: str
    handle: str
    blocks: tuple[Block, ...]
    deadline: float


class Leases(Generic[Block]):
    """The open leases of one engine. `pin` and `unpin` take the blocks in sequence order."""

    def __init__(self, pin: Callable[[Sequence[Block]], None], unpin: Callable[[Sequence[Block]], None]) -> None:
        self._pin = pin
        self._unpin = unpin
        self._open: dict[str, Lease[Block]] = {}
        self._given_back: set[str] = set()
        self.ended: dict[LeaseEnd, int] = dict.fromkeys(LeaseEnd, 0)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._open

    @property
    def pinned_blocks(self) -> int:
        """Blocks held by open leases; one that two leases hold counts twice."""
        return sum(len(lease.blocks) for lease in self._open.values())

    def open(self, handle: str, blocks: Sequence[Block], deadline: float) -> Lease[Block]:
        lease = Lease(ID_PREFIX + uuid4().hex, handle, tuple(blocks), deadline)
        self._pin(lease.blocks)
        self._open[lease.id] = lease
        return lease

    def give_back(self, lease_id: str) -> bool:
        """The router will not use this lease: it ends as released when the worker confirms. False when it is not open.

        Its blocks stay pinned until `end`: a worker that still knows the lease may be serving a read of it.
        """
        if lease_id not in self._open or lease_id in self._given_back:
            return False
        self._given_back.add(lease_id)
        return True

    def of_handle(self, handle: str) -> list[str]:
        """The open leases of one record."""
        return [lease.id for lease in self._open.values() if lease.handle == handle]

    def end(self, lease_id: str, now: float) -> LeaseEnd | None:
        """No worker knows this lease any more: unpin its blocks. None when it ended before, or never was."""
        lease = self._open.pop(lease_id, None)
        if lease is None:
            return None
        if lease_id in self._given_back:
            self._given_back.remove(lease_id)
            how = LeaseEnd.RELEASED
        else:
            how = LeaseEnd.EXPIRED if now >= lease.deadline else LeaseEnd.READ
        self.ended[how] += 1
        self._unpin(lease.blocks)
        return how
