"""Which memory an engine's settings mean."""

from types import SimpleNamespace
from typing import Any

import pytest

from neuron_pd.buffers import BufferFault

pytestmark = pytest.mark.vllm


@pytest.fixture(autouse=True)
def settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEURON_PD_BUFFER", "NEURON_PD_BACKENDS"):
        monkeypatch.delenv(name, raising=False)


def memory(extra: dict[str, Any], *, device: str = "cpu", blocks: int = 10, **parallel: int) -> Any:
    from vllm.config import KVTransferConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    from neuron_pd.connector.memory import Memory

    torch = pytest.importorskip("torch")
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=32, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer.0", "layer.1"], spec)]
    transfer = KVTransferConfig(kv_buffer_device=device, kv_connector_extra_config=dict(extra))
    sizes = {"decode_context_parallel_size": 1, "pipeline_parallel_size": 1, **parallel}
    config: Any = SimpleNamespace(kv_transfer_config=transfer, parallel_config=SimpleNamespace(**sizes))
    return Memory(config, KVCacheConfig(blocks, [], groups))


PAGE = 16 * 2 * 32 * 4  # of one layer; a block has two


def test_memory_is_the_platforms_own_where_nothing_is_said() -> None:
    found = memory({})
    assert (found.adapter.name, found.slots) == ("host", None)
    assert found.seen() is found.kv_cache_config


def test_staged_is_as_many_slots_as_the_bytes_hold() -> None:
    found = memory({"buffer": "staged", "staging_bytes": 7 * PAGE})
    assert (found.adapter.name, found.adapter.device.name, found.slots) == ("staged", "host", 3)
    assert found.seen().num_blocks == 3
    assert memory({"buffer": "staged"}).slots == 10
    with pytest.raises(BufferFault, match="staging_bytes"):
        memory({"buffer": "staged", "staging_bytes": PAGE}).adapter  # noqa: B018


def test_the_environment_wins_over_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PD_BUFFER", "staged")
    monkeypatch.setenv("NEURON_PD_BACKENDS", "LIBFABRIC")
    found = memory({"buffer": "host", "backends": ["UCX"]})
    assert (found.adapter.name, found.backends) == ("staged", ("LIBFABRIC",))


def test_backends_are_written_where_upstream_looks() -> None:
    found = memory({"buffer": "host"})
    assert found.backends
    assert found.vllm_config.kv_transfer_config.get_from_extra_config("backends", None) == list(found.backends)
    with pytest.raises(BufferFault, match="LIBFABRIC"):
        memory({"buffer": "neuron", "backends": ["UCX"]}, device="cuda").backends  # noqa: B018


def test_parameters_of_a_backend_are_a_persons_last_word() -> None:
    found = memory({"backends": ["UCX"], "backend_parameters": {"UCX": {"num_threads": "2"}, "GDS": {"a": "b"}}})
    assert found.parameters() == {"UCX": {"num_threads": "2"}}
    assert memory({"backends": ["UCX"]}).parameters() == {}


def test_a_devices_own_memory_is_not_the_hosts() -> None:
    with pytest.raises(BufferFault, match='set kv_buffer_device to "cuda"'):
        memory({"buffer": "neuron"}, device="cpu").adapter  # noqa: B018


@pytest.mark.parametrize(
    ("extra", "parallel", "what"),
    [
        ({}, {"decode_context_parallel_size": 2}, "decode-context parallelism"),
        ({}, {"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"retention": "pin"}, {}, "pin"),
    ],
)
def test_what_a_staging_buffer_does_not_serve_is_said(extra: Any, parallel: dict[str, int], what: str) -> None:
    with pytest.raises(BufferFault, match=what):
        memory({"buffer": "staged", **extra}, **parallel).slots  # noqa: B018


def test_agents_are_made_with_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

    from neuron_pd.connector.compat import agents_with

    ordinary = base_worker.NixlWrapper
    with agents_with({"UCX": {"num_threads": "2"}}):
        agent = base_worker.NixlWrapper("agent", base_worker.nixl_agent_config(backends=["UCX"]))
    assert agent.backends.keys() == {"UCX"}
    assert agent.backend_options["UCX"]["num_threads"] == "2"
    with agents_with({}):
        assert base_worker.NixlWrapper is ordinary
    assert base_worker.NixlWrapper is ordinary
