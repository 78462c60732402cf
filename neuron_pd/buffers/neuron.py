"""KV in the HBM of a Trainium or Inferentia device, by address, over EFA."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuron_pd.buffers.base import BufferAdapter, BufferFault, Caches, OwnTransfer, Pages, Region, Run, Segment
from neuron_pd.buffers.host_memory import HostRows
from neuron_pd.buffers.machine import LIBFABRIC, Machine
from neuron_pd.buffers.nrt import NrtTensor, Runtime
from neuron_pd.buffers.tensors import TensorPages

# The device of this size has no EFA device next to it that can register HBM (FI_HMEM_NEURON).
NO_HBM_REGISTRATION = frozenset({"trn2.3xlarge"})


class NeuronAdapter(BufferAdapter):
    name = "neuron"
    segment = Segment.VRAM
    own_transfer = OwnTransfer(
        "vllm-neuron",
        "vllm_neuron.vllm.kv_connector.neuron_nixl_connector",
        "NeuronNixlConnectorScheduler",
        "NeuronNixlConnectorWorker",
    )

    def __init__(self, machine: Machine | None = None, runtime: Runtime | None = None) -> None:
        super().__init__(machine)
        self._runtime = runtime

    @property
    def runtime(self) -> Runtime:
        if self._runtime is None:
            self._runtime = Runtime.load()
        return self._runtime

    def backends(self, configured: Sequence[str] | None) -> tuple[str, ...]:
        if configured and LIBFABRIC not in configured:
            raise BufferFault(
                f'NIXL\'s {", ".join(configured)} cannot register Neuron memory: set "backends": ["LIBFABRIC"]'
            )
        return (LIBFABRIC,)

    def before_agent(self) -> None:
        if (instance := self.machine.instance_type()) in NO_HBM_REGISTRATION:
            raise BufferFault(
                f'{instance} cannot register HBM with EFA: set "buffer": "staged" in kv_connector_extra_config'
            )
        self.machine.require_efa()
        self.runtime.require_initialised()

    def regions(self, caches: Caches) -> list[Region]:
        found = {cache.data_ptr(): Region(cache.data_ptr(), cache.nbytes) for cache in caches.values()}
        if 0 in found:
            raise BufferFault(
                "a Neuron tensor's address is 0: `export NEURON_RT_MAP_HBM=1` before the first device tensor is made "
                "(vLLM's Neuron plugin does it in its workers)"
            )
        return sorted(found.values(), key=lambda region: region.address)

    def before_registration(self, regions: Sequence[Region], backends: Sequence[str]) -> None:
        for region in regions[:1]:  # all come from one driver: what it grants for one it grants for all
            self.runtime.require_dmabuf(region.address, region.nbytes)

    def rails(self, regions: Sequence[Region]) -> list[str]:
        """PCI addresses of the EFA devices that NIXL will use for `regions`; none: it uses every one there is."""
        return sorted({bdf for region in regions if (bdf := self.runtime.efa_address(region.address))})

    def pages(self, cache: Any, count: int) -> Pages:
        return NrtPages(cache, count) if isinstance(cache, NrtTensor) else TensorPages(cache, count)

    def describe(self, regions: Sequence[Region]) -> str:
        rails = " ".join(self.rails(regions)) or "all (the runtime does not say which EFA device is next to which)"
        return f"{super().describe(regions)} rails={rails}"


class NrtPages(Pages):
    """Raw device memory, read and written by the runtime."""

    def __init__(self, tensor: NrtTensor, count: int) -> None:
        self.page_bytes, rest = divmod(tensor.nbytes, count)
        if rest:
            raise BufferFault(f"{tensor.nbytes} bytes do not hold {count} equal blocks")
        self.count = count
        self._tensor = tensor

    def to_host(self, run: Run, rows: HostRows) -> None:
        self._tensor.read(run.block * self.page_bytes, run.length * self.page_bytes, rows.address(run.slot))

    def from_host(self, run: Run, rows: HostRows) -> None:
        self._tensor.write(run.block * self.page_bytes, run.length * self.page_bytes, rows.address(run.slot))


@dataclass(frozen=True, slots=True)
class Probe:
    """What one allocation says of this machine: cores, a mapped address, dma-buf, the EFA device beside it."""

    cores: int
    address: int
    dmabuf: str
    efa: str | None


def probe(nbytes: int = 2**20) -> Probe:
    """Ask the runtime, without torch. It takes the visible cores while it runs: use a child process with a timeout.

    `dmabuf` is "ok" or why it was refused. BufferFault where the runtime cannot be loaded or started.
    """
    runtime = Runtime.load()
    runtime.init()
    try:
        tensor = runtime.allocate(nbytes)
        address = tensor.data_ptr()
        try:
            runtime.require_dmabuf(address, nbytes)
            dmabuf = "ok"
        except BufferFault as why:
            dmabuf = str(why)
        found = Probe(runtime.visible_cores(), address, dmabuf, runtime.efa_address(address) if address else None)
        tensor.free()
        return found
    finally:
        runtime.close()
