"""KV in host memory: vLLM on CPU cores."""

from collections.abc import Sequence
from typing import Any

from neuron_pd.buffers.base import BufferAdapter, Caches, Pages, Region, Segment
from neuron_pd.buffers.machine import uses_efa
from neuron_pd.buffers.tensors import TensorPages, storage_regions


class HostAdapter(BufferAdapter):
    name = "host"
    segment = Segment.DRAM
    shares_cores = True
    on_device = False

    def backends(self, configured: Sequence[str] | None) -> tuple[str, ...]:
        return tuple(configured) if configured else self.machine.best_backends()

    def regions(self, caches: Caches) -> list[Region]:
        return storage_regions(caches, device_id=0)

    def before_registration(self, regions: Sequence[Region], backends: Sequence[str]) -> None:
        if uses_efa(backends):
            self.machine.require_efa()
            self.machine.require_memlock(regions)

    def pages(self, cache: Any, count: int) -> Pages:
        return TensorPages(cache, count)
