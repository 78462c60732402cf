"""Device memory that cannot be registered: KV goes through one host buffer on its way out and on its way in.

The buffer has `slots` rows for each distinct piece of KV memory, one row for a block. It is registered once; NIXL and
the peer know slots, never device blocks. Which block is in which slot is the scheduler's business.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from neuron_pd.buffers.base import BufferAdapter, BufferFault, Caches, Pages, Region, Segment, runs
from neuron_pd.buffers.host import HostAdapter
from neuron_pd.buffers.host_memory import PAGE, HostBuffer, HostRows
from neuron_pd.buffers.tensors import storage_regions

STAGING_BYTES = 4 * 2**30


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
        pages = {key: self.device.pages(cache, self.blocks) for key, cache in _distinct(caches).items()}
        offsets, nbytes = {}, 0
        for key, found in pages.items():
            offsets[key] = nbytes
            nbytes += -(-found.page_bytes * self.slots // PAGE) * PAGE
        buffer = HostBuffer(nbytes)
        rows = {key: buffer.rows(offsets[key], found.page_bytes, self.slots) for key, found in pages.items()}
        self._places = [(found, rows[key]) for key, found in pages.items()]
        whole = buffer.tensor()
        return {name: self._view(cache, whole, rows[_place(cache)]) for name, cache in caches.items()}

    def _view(self, cache: Any, whole: Any, rows: HostRows) -> Any:
        rows_per_slot = cache.shape[0] // self.blocks  # a block may be several of the attention kernel's
        inner = rows.row_bytes // rows_per_slot // cache.element_size()
        shape = (self.slots * rows_per_slot, *cache.shape[1:])
        flat = whole.view(cache.dtype)
        return flat.as_strided(shape, (inner, *cache.stride()[1:]), rows.offset // cache.element_size())

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


def _distinct(caches: Caches) -> dict[int, Any]:
    """Caches by place: layers that share memory are one."""
    return {_place(cache): cache for cache in caches.values()}


def _place(cache: Any) -> int:
    """Its address; memory that is not mapped has none, and is then known by its tensor."""
    return int(cache.data_ptr()) or id(cache)
