"""Device memory that cannot be registered: KV goes through one host buffer on its way out and on its way in.

The buffer has `slots` rows for each distinct piece of KV memory, one row for a block. It is registered once; NIXL and
the peer know slots, never device blocks. Which block is in which slot is the scheduler's business.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from neuron_pd.buffers.base import BufferAdapter, BufferFault, Caches, Pages, Region, Segment, runs
from neuron_pd.buffers.host import HostAdapter
from neuron_pd.buffers.host_memory import PAGE, HostBuffer, HostRows
from neuron_pd.buffers.tensors import segments, storage_regions


class StagedAdapter(BufferAdapter):
    """`device` is the adapter of the memory itself; `blocks` of it are reached through `slots` rows of host memory."""

    name = "staged"
    segment = Segment.DRAM
    host_buffer = True

    def __init__(self, device: BufferAdapter, blocks: int, slots: int) -> None:
        if slots < 1:
            raise BufferFault('the staging buffer holds not one block: raise "staging_bytes"')
        super().__init__(device.machine)
        self.device = device
        self.blocks = blocks
        self.slots = slots
        self.shares_cores = device.shares_cores
        self.on_device = device.on_device
        self.own_transfer = device.own_transfer
        self._host = HostAdapter(device.machine)
        self._places: list[tuple[Pages, HostRows]] = []

    def backends(self, configured: Sequence[str] | None) -> tuple[str, ...]:
        return self._host.backends(configured)

    def regions(self, caches: Caches) -> list[Region]:
        return storage_regions(caches, device_id=0)

    def before_registration(self, regions: Sequence[Region], backends: Sequence[str]) -> None:
        self._host.before_registration(regions, backends)

    def pages(self, cache: Any, count: int) -> Pages:
        return self.device.pages(cache, count)

    def attach(self, caches: Caches) -> Caches:
        """Make the buffer; the caches that NIXL is shown are views of it with `slots` blocks in place of `blocks`."""
        caches = self.device.locate(caches)
        offsets: dict[int, int] = {}
        laid_out: list[tuple[Pages, int]] = []
        nbytes = 0
        for place, cache in {_place(cache): cache for cache in caches.values()}.items():
            offsets[place] = nbytes
            for segment in segments(cache):
                pages = self.device.pages(segment, self.blocks)
                laid_out.append((pages, nbytes))
                nbytes += pages.page_bytes * self.slots
            nbytes = -(-nbytes // PAGE) * PAGE
        buffer = HostBuffer(nbytes)
        self._places = [(pages, buffer.rows(offset, pages.page_bytes, self.slots)) for pages, offset in laid_out]
        whole = buffer.tensor()
        return {name: self._view(cache, whole, offsets[_place(cache)]) for name, cache in caches.items()}

    def _view(self, cache: Any, whole: Any, offset: int) -> Any:
        """The part of the buffer that stands for `cache`, in the shape and the order of its memory."""
        rows_per_slot = cache.shape[0] // self.blocks  # a block may be several of the attention kernel's
        rows = self.slots * rows_per_slot
        apart = cache.stride(0) * cache.shape[0]
        row = prod(segments(cache)[0].shape[1:])
        inner = [stride if stride < apart else stride // apart * row * rows for stride in cache.stride()[1:]]
        flat = whole.view(cache.dtype)
        return flat.as_strided((rows, *cache.shape[1:]), (row, *inner), offset // cache.element_size())

    def save(self, blocks: Iterable[int], slots: Iterable[int]) -> None:
        """Device to host: `blocks[i]` into `slots[i]`."""
        for run in runs(blocks, slots):
            for pages, rows in self._places:
                pages.to_host(run, rows)

    def load(self, blocks: Iterable[int], slots: Iterable[int]) -> None:
        """Host to device: `slots[i]` into `blocks[i]`."""
        for run in runs(blocks, slots):
            for pages, rows in self._places:
                pages.from_host(run, rows)

    def describe(self, regions: Sequence[Region]) -> str:
        return f"{super().describe(regions)} slots={self.slots} of {self.device.name} memory's {self.blocks} blocks"


def _place(cache: Any) -> int:
    """Its address, which layers that share memory have in common; for memory that is not mapped, its tensor."""
    return int(cache.data_ptr()) or id(cache)
