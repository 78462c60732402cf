"""Why a leg cannot run on this machine."""

from collections.abc import Callable
from functools import cache

from ci import libfabric
from ci.matrix.legs import Leg
from neuron_pd.errors import UsageError
from neuron_pd.hosts.machine import Machine, observe
from neuron_pd.profiles import Profiles
from neuron_pd.profiles.detect import instance_of

KINDS: dict[str, tuple[str, Callable[[Machine], int]]] = {
    "cuda": ("NVIDIA GPUs", lambda machine: len(machine.gpus)),
    "neuron": ("Neuron cores", lambda machine: sum(device.cores for device in machine.neuron)),
}
ENGINES = 2  # prefill and decode, one each at least


def missing(leg: Leg, machine: Machine) -> str | None:
    """What `machine` lacks for a leg, in one line; None where it can run."""
    if leg.accelerator.instance:
        return _hardware(leg, machine)
    return _fabric() if leg.within == libfabric.__name__ else None


def _hardware(leg: Leg, machine: Machine) -> str | None:
    wanted = leg.accelerator.instance
    words, count = KINDS[leg.accelerator.name]
    hardware = Profiles().instance(wanted).hardware
    assert hardware is not None, f"the profile of {wanted} has no hardware"
    if count(machine) < ENGINES:
        return f"needs {wanted} or its like: {ENGINES} {words} at least, and this machine has {count(machine)}"
    if leg.backend == "libfabric" and not machine.efa:
        return f"LIBFABRIC needs EFA devices, of which {wanted} has {hardware.efa}, and this machine has none"
    try:
        instance_of(machine, Profiles())
    except UsageError as unknown:
        return str(unknown)
    return None


@cache
def _fabric() -> str | None:
    return libfabric.why_not()


def instance(leg: Leg, machine: Machine | None = None) -> str:
    """The profile that a leg's engines are started with on this machine, of whose kind it is."""
    return instance_of(machine or observe(), Profiles()) if leg.accelerator.instance else "cpu"
