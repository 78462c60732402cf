"""What adapters for torch tensors share."""

from typing import Any

from neuron_pd.buffers.base import BufferFault, Caches, Pages, Region, Run
from neuron_pd.buffers.host_memory import HostRows


def storage_regions(caches: Caches, device_id: int | None = None) -> list[Region]:
    """The storages behind tensors, each once, in address order."""
    found: dict[int, Region] = {}
    for cache in caches.values():
        storage = cache.untyped_storage()
        address = storage.data_ptr()
        device = max(cache.get_device(), 0) if device_id is None else device_id
        found[address] = Region(address, storage.nbytes(), device)
    return sorted(found.values(), key=lambda region: region.address)


def segments(cache: Any) -> list[Any]:
    """The pieces of a cache that each have a part of every block: K and V where they lie apart, else the cache.

    A dimension whose stride is as long as all blocks together tells pieces apart.
    """
    if not hasattr(cache, "stride"):
        return [cache]
    apart = cache.stride(0) * cache.shape[0]
    for dimension in range(1, len(cache.shape)):
        if cache.shape[dimension] > 1 and cache.stride(dimension) >= apart > 0:
            parts = [cache.select(dimension, index) for index in range(cache.shape[dimension])]
            return [piece for part in parts for piece in segments(part)]
    return [cache]


class TensorPages(Pages):
    """A tensor's blocks. One run is one `narrow` and one `copy_` on each side.

    Never an index_select: what that costs grows with the whole cache on some devices.
    """

    def __init__(self, cache: Any, count: int) -> None:
        elements = _dense_elements(cache, count)
        self.count = count
        self.page_bytes = elements * cache.element_size()
        self._dtype = cache.dtype
        self._blocks = cache.as_strided((count, elements), (cache.stride(0) * (cache.shape[0] // count), 1))

    def to_host(self, run: Run, rows: HostRows) -> None:
        rows.tensor(self._dtype).narrow(0, run.slot, run.length).copy_(self._blocks.narrow(0, run.block, run.length))

    def from_host(self, run: Run, rows: HostRows) -> None:
        self._blocks.narrow(0, run.block, run.length).copy_(rows.tensor(self._dtype).narrow(0, run.slot, run.length))


def _dense_elements(cache: Any, count: int) -> int:
    """How many elements a block has. A block may be several rows of the first dimension."""
    rows_per_block, rest = divmod(cache.shape[0], count)
    if rest or not rows_per_block:
        raise BufferFault(f"a cache of {cache.shape[0]} rows does not hold {count} equal blocks")
    row: int = 1
    for size, stride in sorted(zip(cache.shape[1:], cache.stride()[1:], strict=True), key=lambda pair: pair[1]):
        if size > 1 and stride != row:
            raise BufferFault(_NOT_DENSE)
        row *= size
    if rows_per_block > 1 and cache.stride(0) != row:
        raise BufferFault(_NOT_DENSE)
    elements: int = row * rows_per_block
    return elements


_NOT_DENSE = (
    "a block of this KV cache is not one dense piece of memory, so it cannot go through a host buffer: "
    "serve with a layout that keeps a layer's block together (VLLM_KV_CACHE_LAYOUT=HND)"
)
