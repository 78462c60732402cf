"""Which instance type a machine is, from what it says and what is in it."""

from collections.abc import Iterable, Sequence
from typing import Final

from neuron_pd.errors import UsageError
from neuron_pd.hosts.machine import Machine
from neuron_pd.profiles.instance import Hardware, Instance
from neuron_pd.profiles.store import Profiles

GIB: Final = 2**30
TOLERANCE: Final = 0.06  # drivers and data sheets count memory differently, by a few percent
PLAIN: Final = "cpu"


def instance_of(machine: Machine, profiles: Profiles) -> str:
    """The instance type's name; `cpu` for a machine without an accelerator.

    The kernel's product name and neuron-ls's instance type decide where they name a known type. Elsewhere, as in a
    virtual machine that hides it, accelerators, memory and EFA devices do. UsageError when that leaves none or several.
    """
    known = profiles.instances()
    said = [machine.product, *(device.instance_type for device in machine.neuron)]
    if named := [name for name in said if name in known]:
        return named[0]
    if not machine.neuron and not machine.gpus:
        return PLAIN
    fitting = _fitting(machine, (profiles.instance(name) for name in known))
    if len(fitting) == 1:
        return fitting[0]
    found = f"{machine.accelerators} and {len(machine.efa)} EFA devices"
    if fitting:
        raise UsageError(f"{found} may be {' or '.join(fitting)}: say --instance")
    raise UsageError(f"no instance type is known with {found}: say --instance, or give a profile of your own")


def _fitting(machine: Machine, instances: Iterable[Instance]) -> list[str]:
    fitting = [
        (instance.name, instance.hardware)
        for instance in instances
        if instance.hardware is not None and _has(machine, instance, instance.hardware)
    ]
    same_network = [name for name, hardware in fitting if hardware.efa == len(machine.efa)]
    return same_network or [name for name, _ in fitting]


def _has(machine: Machine, instance: Instance, hardware: Hardware) -> bool:
    """The accelerators are these, by number, name where they have one, and memory."""
    if machine.gpus:
        named = all(hardware.chip in gpu.name for gpu in machine.gpus)
        return instance.accelerator == "cuda" and named and _like(hardware, [gpu.memory for gpu in machine.gpus])
    cores = sum(device.cores for device in machine.neuron)
    right = instance.is_neuron and cores in (0, hardware.cores, 2 * hardware.cores)
    return right and _like(hardware, [device.memory for device in machine.neuron])


def _like(hardware: Hardware, memories: Sequence[int]) -> bool:
    wanted = hardware.hbm_gib * GIB
    return len(memories) == hardware.devices and all(
        not memory or abs(memory - wanted) <= TOLERANCE * wanted for memory in memories
    )
