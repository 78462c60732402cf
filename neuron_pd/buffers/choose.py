"""Which adapter an engine's memory gets."""

from collections.abc import Callable

from neuron_pd.buffers.base import BufferAdapter, BufferFault
from neuron_pd.buffers.cuda import CudaAdapter
from neuron_pd.buffers.host import HostAdapter
from neuron_pd.buffers.machine import Machine
from neuron_pd.buffers.neuron import NO_HBM_REGISTRATION, NeuronAdapter
from neuron_pd.buffers.nxd import NxdAdapter
from neuron_pd.buffers.staged import StagedAdapter

AUTO, STAGED = "auto", "staged"
ADAPTERS: dict[str, Callable[[Machine], BufferAdapter]] = {
    "host": HostAdapter,
    "cuda": CudaAdapter,
    "neuron": NeuronAdapter,
    "nxd": NxdAdapter,
}
_OF_DEVICE = {"cpu": "host", "cuda": "cuda", "neuron": "neuron"}


def is_staged(wanted: str, device_type: str, kv_buffer_device: str, machine: Machine | None = None) -> bool:
    """Whether KV goes through a host buffer: as the setting "buffer" says, or for `auto` where it has to.

    It has to where vLLM's kv_buffer_device asks for host memory on a device, where the device's memory is not of a kind
    that can be registered, and where this instance cannot register it.
    """
    if wanted != AUTO:
        return wanted == STAGED
    if device_type == "cpu":
        return False
    unregistrable = (machine or Machine()).instance_type() in NO_HBM_REGISTRATION
    return kv_buffer_device == "cpu" or device_type not in _OF_DEVICE or unregistrable


def choose(wanted: str, device_type: str, *, machine: Machine | None = None) -> BufferAdapter:
    """The adapter of the engine's own memory. `wanted` is the setting "buffer"; BufferFault for one there is not.

    With `is_staged` it is the device side of a `StagedAdapter`.
    """
    if wanted not in (AUTO, STAGED, *ADAPTERS):
        known = ", ".join((AUTO, *ADAPTERS, STAGED))
        raise BufferFault(f'"buffer": {wanted!r} in kv_connector_extra_config: use one of {known}')
    # Memory of an unknown kind is copied with torch alone, as the host's is.
    name = _OF_DEVICE.get(device_type, "host") if wanted in (AUTO, STAGED) else wanted
    return ADAPTERS[name](machine or Machine())


def slots_for(blocks: int, block_bytes: int, staging_bytes: int) -> int:
    """How many blocks a staging buffer of `staging_bytes` holds: never more than there are."""
    return min(blocks, staging_bytes // block_bytes)


__all__ = ["ADAPTERS", "AUTO", "STAGED", "StagedAdapter", "choose", "is_staged", "slots_for"]
