"""The contract of a buffer adapter: where an engine's KV lives, and how NIXL sees it.

An adapter answers, for one kind of memory: which NIXL segment, which addresses, lengths and device ids, which backends
and their parameters, whether a host buffer stands between, what must be true before memory is registered, and how
blocks are copied to and from host memory. The connector asks; it knows no accelerator by name.

A *cache* is one layer's KV tensor, blocks first: `cache[b]` is block b. Caches may share memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from neuron_pd.buffers.host_memory import HostRows
from neuron_pd.buffers.machine import BufferFault, Machine, Region

__all__ = ["BufferAdapter", "BufferFault", "Caches", "OwnTransfer", "Pages", "Region", "Run", "Segment", "runs"]

Caches = Mapping[str, Any]


class Segment(StrEnum):
    """NIXL's names for kinds of memory."""

    DRAM = "DRAM"  # host
    VRAM = "VRAM"  # device


@dataclass(frozen=True, slots=True)
class Run:
    """`length` consecutive blocks from `block` on, and as many consecutive host slots from `slot` on."""

    block: int
    slot: int
    length: int


def runs(blocks: Iterable[int], slots: Iterable[int]) -> list[Run]:
    """Pair `blocks[i]` with `slots[i]`, in as few runs as their order allows. ValueError for unequal lengths."""
    found: list[Run] = []
    for block, slot in zip(blocks, slots, strict=True):
        last = found[-1] if found else None
        if last and (block, slot) == (last.block + last.length, last.slot + last.length):
            found[-1] = Run(last.block, last.slot, last.length + 1)
        else:
            found.append(Run(block, slot, 1))
    return found


class Pages(ABC):
    """The blocks of one piece of memory as equal pages that can be copied to and from rows of host memory.

    One run is one copy in either direction. A copy is complete when the call returns.
    """

    page_bytes: int
    count: int

    @abstractmethod
    def to_host(self, run: Run, rows: HostRows) -> None:
        """Copy the run's blocks into the run's rows."""

    @abstractmethod
    def from_host(self, run: Run, rows: HostRows) -> None:
        """Copy the run's rows into the run's blocks."""


@dataclass(frozen=True, slots=True)
class OwnTransfer:
    """Classes of a platform's own for models that upstream's do not serve there: NIXL's scheduler and worker sides."""

    package: str
    module: str
    scheduler: str
    worker: str


class BufferAdapter(ABC):
    """One kind of memory. An adapter is made once for each worker process."""

    name: str
    segment: Segment
    host_buffer: bool = False  # KV goes through host memory on its way, in both directions
    shares_cores: bool = False  # the model computes on the cores that NIXL's threads would poll
    on_device: bool = True  # vLLM's kv_buffer_device names device memory, whatever its name there
    own_transfer: OwnTransfer | None = None

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine or Machine()

    @abstractmethod
    def backends(self, configured: Sequence[str] | None) -> tuple[str, ...]:
        """NIXL's backends for this memory: `configured`, where that can work, or the best of this machine for None.

        BufferFault for a backend that cannot register this memory.
        """

    def parameters(self, backend: str) -> dict[str, str]:
        """What `backend` is created with, beside its defaults."""
        return {}

    def before_agent(self) -> None:
        """What must be true before the NIXL agent is made. BufferFault with the line that makes it so."""
        return

    @abstractmethod
    def regions(self, caches: Caches) -> list[Region]:
        """The memory behind `caches`, each piece once, in address order. BufferFault where there is no address."""

    def before_registration(self, regions: Sequence[Region], backends: Sequence[str]) -> None:
        """What must be true of `regions` before they are registered. BufferFault with the line that makes it so."""
        return

    @abstractmethod
    def pages(self, cache: Any, count: int) -> Pages:
        """`cache` as `count` pages. BufferFault where a block is not one dense piece."""

    def locate(self, caches: Caches) -> Caches:
        """The KV tensors, where the engine hands over something that holds them."""
        return caches

    def attach(self, caches: Caches) -> Caches:
        """The caches that NIXL is shown in place of `caches`: themselves, or views of a host buffer."""
        return caches

    def describe(self, regions: Sequence[Region]) -> str:
        """One line for the log."""
        mib = sum(region.nbytes for region in regions) / 2**20
        return f"buffer={self.name} segment={self.segment} regions={len(regions)} MiB={mib:.0f}"
