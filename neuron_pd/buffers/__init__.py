"""Where KV lives and how NIXL sees it: one adapter for each kind of memory, behind the contract of `base`."""

from neuron_pd.buffers.base import BufferAdapter, BufferFault, Region, Run, Segment, runs
from neuron_pd.buffers.choose import ADAPTERS, choose

__all__ = ["ADAPTERS", "BufferAdapter", "BufferFault", "Region", "Run", "Segment", "choose", "runs"]
