"""The probes of a machine, one module a subject."""

from typing import Final

from neuron_pd.doctor.probes import cuda, efa, limits, machine, network, neuron, nixl, versions

MACHINE: Final = (
    *machine.PROBES,
    *efa.PROBES,
    *nixl.PROBES,
    *neuron.PROBES,
    *cuda.PROBES,
    *limits.PROBES,
    *versions.PROBES,
    *network.PROBES,
)
