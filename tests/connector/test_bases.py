"""Whose transfers ours sit on. The Neuron plugin is played by a module shaped as its own, over vLLM's classes."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from neuron_pd.buffers import BufferFault
from neuron_pd.buffers.host import HostAdapter
from neuron_pd.buffers.neuron import NeuronAdapter
from neuron_pd.buffers.staged import StagedAdapter

pytestmark = pytest.mark.vllm

MODULE = "vllm_neuron.vllm.kv_connector.neuron_nixl_connector"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """vllm_neuron's connector module: plain subclasses of upstream's, with a scheduler that shortens prompts."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.scheduler import NixlConnectorScheduler
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.worker import NixlConnectorWorker

    class NeuronNixlConnectorScheduler(NixlConnectorScheduler):
        def on_new_request(self, request: Any) -> None:
            self.seen = [*getattr(self, "seen", ()), request.request_id]
            super().on_new_request(request)

    class NeuronNixlConnectorWorker(NixlConnectorWorker):
        pass

    parts = MODULE.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = sys.modules[MODULE]
    module.NeuronNixlConnectorScheduler = NeuronNixlConnectorScheduler  # type: ignore[attr-defined]
    module.NeuronNixlConnectorWorker = NeuronNixlConnectorWorker  # type: ignore[attr-defined]
    return module


def found(adapter: Any, *, dcp: int = 1, window: int = 0) -> tuple[type, type]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

    from neuron_pd.connector.bases import bases

    shape = {"block_size": 16, "num_kv_heads": 1, "head_size": 32, "dtype": torch.float32}
    spec = SlidingWindowSpec(**shape, sliding_window=window) if window else FullAttentionSpec(**shape)
    config: Any = SimpleNamespace(parallel_config=SimpleNamespace(decode_context_parallel_size=dcp))
    return bases(config, KVCacheConfig(8, [], [KVCacheGroupSpec(["layer.0"], spec)]), adapter)


def test_plain_tensor_parallelism_is_upstreams(plugin: ModuleType) -> None:
    scheduler, worker = found(NeuronAdapter())
    assert (scheduler.__name__, worker.__name__) == ("NixlPullConnectorScheduler", "NixlPullConnectorWorker")


@pytest.mark.parametrize("need", [{"dcp": 2}, {"window": 128}], ids=["context parallel", "sliding window"])
def test_what_the_plugin_does_in_its_own_way_is_the_plugins(plugin: ModuleType, need: dict[str, int]) -> None:
    scheduler, worker = found(NeuronAdapter(), **need)
    assert (scheduler.__module__, worker.__module__) == (__name__, __name__)
    assert scheduler.__name__ == "NeuronNixlConnectorScheduler"
    staged = StagedAdapter(NeuronAdapter(), blocks=8, slots=4)
    assert found(staged, **need) == (scheduler, worker)


def test_elsewhere_the_same_model_is_upstreams(plugin: ModuleType) -> None:
    assert found(HostAdapter(), window=128)[0].__name__ == "NixlPullConnectorScheduler"


def test_without_the_plugin_it_says_what_to_install() -> None:
    with pytest.raises(BufferFault, match=f"a sliding window on neuron needs {MODULE}.*install vllm-neuron for vLLM"):
        found(NeuronAdapter(), window=128)


def test_a_plugin_that_lacks_a_class_is_said(plugin: ModuleType) -> None:
    del plugin.NeuronNixlConnectorWorker
    with pytest.raises(BufferFault, match="NeuronNixlConnectorWorker"):
        found(NeuronAdapter(), dcp=2)


def test_leases_work_over_the_plugins_scheduler(
    plugin: ModuleType, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole scheduler side, on vLLM's real scheduler, with the plugin's class under it."""
    from neuron_pd.connector import connector

    theirs = plugin.NeuronNixlConnectorScheduler, plugin.NeuronNixlConnectorWorker
    monkeypatch.setattr(connector, "bases", lambda *_: theirs)
    decode, prefill = engine("decode"), engine("prefill")
    assert isinstance(prefill.scheduler.connector.connector_scheduler, plugin.NeuronNixlConnectorScheduler)
    history = decode.turn("h", range(100, 196))
    lease = decode.control("acquire", "h")["kv_transfer_params"]
    prefill.add("p", [*history, 7], lease)
    prefill.step()
    prefill.step(finished_recving={"p"})
    assert prefill.run("p")["neuron_pd_turn"]["reused"] == 96
    assert prefill.scheduler.connector.connector_scheduler.seen == ["p"]
