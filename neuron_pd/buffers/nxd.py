"""KV on the older Neuron stack: torch-neuronx with neuronx-distributed-inference (SDK 2.31 and before).

There KV is no vLLM tensor but state of the traced model: `model.context_encoding_model.model.nxd_model.state`, a list
with a dictionary for each tensor-parallel rank of this process, whose `kv_mgr.past_key_values.{2·layer}` is K and
`….{2·layer + 1}` is V (neuronx-distributed-inference, utils/kv_cache_reconstruct_utils.py). One process drives all
ranks, so to vLLM its world is of size 1. With prefix caching the tensors are blocks first, `pa_num_blocks` and one
more that takes what is not to be kept (modules/kvcache/block_kv_cache_manager.py).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_pd.buffers.base import BufferFault, Caches, Pages, Region
from neuron_pd.buffers.neuron import NeuronAdapter
from neuron_pd.buffers.tensors import TensorPages

LAST_SDK = "2.31"
_KV = re.compile(r"(?:.*\.)?past_key_values\.(\d+)$")


@dataclass(frozen=True, slots=True)
class TensorParallel:
    rank: int
    size: int


def tensor_parallel() -> TensorParallel:
    """This process's place, as neuronx-distributed has it; the only one where nothing is initialised.

    BufferFault where neuronx-distributed is not installed.
    """
    try:
        from neuronx_distributed.parallel_layers import parallel_state
    except ImportError:
        raise BufferFault(
            "neuronx-distributed cannot be imported: install it from Neuron's package index, with the torch-neuronx of "
            "the same SDK (the packages of these names elsewhere are empty)"
        ) from None
    if not parallel_state.model_parallel_is_initialized():
        return TensorParallel(0, 1)
    return TensorParallel(
        parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_size()
    )


def kv_state(model: Any) -> dict[str, Any]:
    """The KV tensors of a loaded model by name, "rank0.layer3.v", for each rank of this process.

    `model` is the application of neuronx-distributed-inference, or vLLM's wrapper of it. BufferFault where it has no
    such state: it was not loaded yet, or runs on the CPU.
    """
    for application in _unwrapped(model):
        traced = getattr(getattr(application, "context_encoding_model", None), "model", None)
        if (state := getattr(getattr(traced, "nxd_model", None), "state", None)) is not None:
            return dict(_tensors(state))
    raise BufferFault(
        "this model has no device state: load it (`model.load(compiled_path)`) before the connector registers its KV"
    )


def _unwrapped(model: Any) -> Iterator[Any]:
    while model is not None:
        yield model
        model = getattr(model, "model", None)


def _tensors(state: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    for rank, tensors in enumerate(state):
        numbered = {int(found[1]): tensor for name, tensor in tensors.items() if (found := _KV.match(name))}
        for index in sorted(numbered):
            yield f"rank{rank}.layer{index // 2}.{'kv'[index % 2]}", numbered[index]


def limits(neuron_config: Any) -> list[str]:
    """What cannot be done on this stack with this configuration, a line each, to say at start-up."""
    said = [
        f"the NxD stack (SDK {LAST_SDK} and before) has no NIXL connector of its own: KV is reached through the state "
        "of the traced model, by address where it has one and through a host buffer where not"
    ]
    if not getattr(neuron_config, "is_prefix_caching", False):
        said.append(
            "without a paged prefix cache a sequence's KV is one block of max_model_len tokens: nothing can be read "
            "back from this engine; set is_prefix_caching, is_block_kv_layout and pa_block_size where there are such"
        )
    return said


class NxdAdapter(NeuronAdapter):
    """Handed the model in place of tensors, it finds them."""

    name = "nxd"

    def locate(self, caches: Caches) -> Caches:
        found: dict[str, Any] = {}
        for name, cache in caches.items():
            found.update({name: cache} if hasattr(cache, "data_ptr") else kv_state(cache))
        return found

    def regions(self, caches: Caches) -> list[Region]:
        return super().regions(self.locate(caches))

    def pages(self, cache: Any, count: int) -> Pages:
        # The block past the last takes the writes of padding; it is nobody's KV.
        return TensorPages(cache.narrow(0, 0, count), count)
