"""KV in the memory of an NVIDIA or AMD GPU: registered as it is, over EFA or over what UCX finds."""

from collections.abc import Sequence
from typing import Any

from neuron_pd.buffers.base import BufferAdapter, BufferFault, Caches, Pages, Region, Segment
from neuron_pd.buffers.machine import uses_efa
from neuron_pd.buffers.tensors import TensorPages, storage_regions


class CudaAdapter(BufferAdapter):
    name = "cuda"
    segment = Segment.VRAM

    def backends(self, configured: Sequence[str] | None) -> tuple[str, ...]:
        return tuple(configured) if configured else self.machine.best_backends()

    def before_agent(self) -> None:
        import torch

        # NIXL's plugins look for the device's context when they start; without one UCX leaves the GPU out.
        if not torch.cuda.is_initialized():
            raise BufferFault(
                "the GPU has no context yet, and NIXL would not see it: make the first device tensor "
                "(`torch.cuda.init()`) before the NIXL agent"
            )

    def regions(self, caches: Caches) -> list[Region]:
        found = storage_regions(caches)
        if any(region.address == 0 for region in found):
            raise BufferFault("a KV tensor of the GPU has no address: it is on the meta device, or was freed")
        return found

    def before_registration(self, regions: Sequence[Region], backends: Sequence[str]) -> None:
        if uses_efa(backends):
            self.machine.require_efa()

    def pages(self, cache: Any, count: int) -> Pages:
        return TensorPages(cache, count)
