"""KV on the NxD stack, found in fakes that are shaped as neuronx-distributed(-inference) is."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from neuron_pd.buffers import BufferFault  # noqa: E402
from neuron_pd.buffers.machine import Machine  # noqa: E402
from neuron_pd.buffers.nrt import Runtime  # noqa: E402
from neuron_pd.buffers.nxd import NxdAdapter, kv_state, limits, tensor_parallel  # noqa: E402
from neuron_pd.buffers.staged import StagedAdapter  # noqa: E402
from tests.fakes.device import DeviceTensor  # noqa: E402

BLOCKS, LAYERS, RANKS = 6, 2, 2


def traced(mapped: bool = True) -> Any:
    """`NeuronLlamaForCausalLM` once loaded: the parts that hold KV. Ranks are in one process; weights lie beside KV."""
    state = []
    for rank in range(RANKS):
        tensors: dict[str, Any] = {"rank_util.rank": torch.tensor([rank])}
        for index in reversed(range(2 * LAYERS)):
            cache = torch.full((BLOCKS + 1, 4, 1, 8), float(10 * rank + index))
            tensors[f"kv_mgr.past_key_values.{index}"] = DeviceTensor(cache, "xla", mapped)
        state.append(tensors)
    nxd_model = SimpleNamespace(state=state)
    return SimpleNamespace(
        context_encoding_model=SimpleNamespace(model=SimpleNamespace(nxd_model=nxd_model)),
        token_generation_model=SimpleNamespace(model=SimpleNamespace(nxd_model=nxd_model)),
    )


@pytest.fixture
def parallel_state(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """neuronx_distributed.parallel_layers.parallel_state"""
    names = ("neuronx_distributed", "neuronx_distributed.parallel_layers")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("neuronx_distributed.parallel_layers.parallel_state")
    sys.modules[names[1]].parallel_state = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.model_parallel_is_initialized = lambda: True  # type: ignore[attr-defined]
    module.get_tensor_model_parallel_rank = lambda: 3  # type: ignore[attr-defined]
    module.get_tensor_model_parallel_size = lambda: 8  # type: ignore[attr-defined]
    return module


def test_rank_and_size_are_neuronx_distributeds(parallel_state: Any) -> None:
    place = tensor_parallel()
    assert (place.rank, place.size) == (3, 8)
    parallel_state.model_parallel_is_initialized = lambda: False
    place = tensor_parallel()
    assert (place.rank, place.size) == (0, 1)


def test_without_the_package_it_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "neuronx_distributed", None)
    with pytest.raises(BufferFault, match="install it from Neuron's package index"):
        tensor_parallel()


@pytest.mark.parametrize("wrap", [lambda app: app, lambda app: SimpleNamespace(model=app)], ids=["bare", "in vLLM"])
def test_kv_is_found_by_rank_layer_and_kind(wrap: Any) -> None:
    found = kv_state(wrap(traced()))
    names = [f"rank{rank}.layer{layer}.{kind}" for rank in range(RANKS) for layer in range(LAYERS) for kind in "kv"]
    assert list(found) == names
    assert [float(cache.inner[0, 0, 0, 0]) for cache in found.values()] == [0, 1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize(
    "model", [SimpleNamespace(), SimpleNamespace(context_encoding_model=SimpleNamespace(model=None))]
)
def test_a_model_that_is_not_loaded(model: Any) -> None:
    with pytest.raises(BufferFault, match="load it"):
        kv_state(model)


def test_by_address_where_there_is_one_and_staged_otherwise(machine: Machine, runtime: Runtime) -> None:
    adapter = NxdAdapter(machine, runtime)
    assert len(adapter.regions({"model": traced()})) == RANKS * LAYERS * 2
    unmapped = traced(mapped=False)
    with pytest.raises(BufferFault, match="NEURON_RT_MAP_HBM=1"):
        adapter.regions({"model": unmapped})
    staged = StagedAdapter(adapter, BLOCKS, 3)
    shown = staged.attach({"model": unmapped})
    assert {tuple(cache.shape) for cache in shown.values()} == {(3, 4, 1, 8)}
    staged.save([4, 5], [0, 1])
    assert [float(cache[1, 0, 0, 0]) for cache in shown.values()] == [0, 1, 2, 3, 10, 11, 12, 13]


def test_what_it_cannot_do_is_said() -> None:
    whole = limits(SimpleNamespace(is_prefix_caching=False))
    assert "no NIXL connector of its own" in whole[0]
    assert "nothing can be read back" in whole[1]
    assert "is_prefix_caching" in whole[1]
    assert len(limits(SimpleNamespace(is_prefix_caching=True))) == 1
