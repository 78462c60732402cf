"""A running cluster: its proxy, its engines, and whether reuse works."""

from typing import Final

from neuron_pd.doctor.cluster import engines, network, reuse

CLUSTER: Final = (*engines.PROBES, *network.PROBES, *reuse.PROBES)
