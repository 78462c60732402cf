"""What an expert would have written: the multi-turn P/D article's command on P5en, vLLM Neuron's on Trn2."""

import json
from typing import Any

import pytest

from neuron_pd.errors import UsageError
from tests.launcher.engines import MODELS, ONE_NODE, engine, flags_of, neuron_config


def article(role: str, bidir: bool, model: str = "Qwen/Qwen3-32B", **more: Any) -> Any:
    return engine("p5en.48xlarge", role, connector="upstream", model=model, served_name="Qwen", bidir=bidir, **more)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-32B", "zai-org/GLM-5-FP8"])
@pytest.mark.parametrize("bidir", [True, False])
def test_the_articles_prefill(model: str, bidir: bool) -> None:
    spec = article("prefill", bidir, model, prefix_caching=False)
    assert spec.environment() == {
        "FI_PROVIDER": "efa",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600",
    }
    *argv, config = spec.argv()
    assert argv == [
        "vllm", "serve", model, "--served-model-name", "Qwen", "--dtype", "bfloat16", "--tensor-parallel-size", "8",
        "--max-model-len", "32768", "--max-num-seqs", "8", "--no-enable-prefix-caching", "--port", "8100",
        "--kv-transfer-config",
    ]  # fmt: skip
    assert json.loads(config) == {
        "kv_connector": "NixlConnector",
        "kv_buffer_device": "cuda",
        "kv_role": "kv_producer",
        "engine_id": "prefill-engine-001",
        "kv_rank": 0,
        "kv_parallel_size": 2,
        "kv_connector_extra_config": {
            "backends": ["LIBFABRIC"],
            "kv_recompute_threshold": 64,
            "decoder_kv_blocks_ttl": 480,
            "bidirectional_kv_xfer": bidir,
        },
    }


def test_the_articles_decode() -> None:
    spec = article("decode", True)
    assert spec.environment()["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.2"
    assert spec.environment()["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    flags = flags_of(spec)
    assert flags["--port"] == "8200"
    assert "--no-enable-prefix-caching" not in flags
    config = json.loads(flags["--kv-transfer-config"])
    assert (config["kv_role"], config["engine_id"], config["kv_rank"]) == ("kv_consumer", "decode-engine-001", 1)


def test_our_connector_adds_to_the_article_and_changes_nothing() -> None:
    theirs, ours = flags_of(article("prefill", True)), flags_of(engine("p5en.48xlarge", served_name="Qwen"))
    config, added = (json.loads(flags.pop("--kv-transfer-config")) for flags in (theirs, ours))
    for name in ("kv_rank", "kv_parallel_size"):  # NIXL has no use for them, and vLLM refuses them from 0.32 on
        assert name in config
        assert name not in added
        del config[name]
    assert {name: ours[name] for name in theirs} == theirs
    assert set(ours) - set(theirs) == {"--host", "--middleware"}
    extra, more = config.pop("kv_connector_extra_config"), added.pop("kv_connector_extra_config")
    assert {name: more[name] for name in extra} == extra
    assert set(more) - set(extra) == {"retention", "read_lease_seconds", "kv_lease_duration", "ledger_bytes"}
    assert {name for name in config if added[name] != config[name]} == {"engine_id"}
    assert set(added) - set(config) == {"kv_connector_module_path", "kv_load_failure_policy"}


@pytest.mark.parametrize(("role", "skipped"), [("prefill", "DECODE"), ("decode", "PREFILL")])
@pytest.mark.parametrize(("nodes", "cores"), [({}, ("0-7", "0-7")), (ONE_NODE, ("0-7", "56-63"))])
def test_the_environment_on_trn2(role: str, skipped: str, nodes: dict[str, str], cores: tuple[str, str]) -> None:
    first = role == "prefill"
    spec = engine("trn2.48xlarge", role, connector="upstream", **nodes)
    assert spec.environment() == {
        "FI_PROVIDER": "efa",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "FI_EFA_ENABLE_SHM_TRANSFER": "0",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1" if first or nodes else "10.0.0.2",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5559" if first else "5659",
        "NEURON_VISIBLE_DEVICES": cores[0 if first else 1],
        "VLLM_NEURON_COMPILATION_TIMEOUT": "2400",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1200",
        "VLLM_ENGINE_READY_TIMEOUT_S": "1800",
        f"VLLM_NEURON_SKIP_{skipped}_WARMUP": "1",
    }


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("model", MODELS)
def test_the_flags_on_trn2(role: str, model: str) -> None:
    spec = engine("trn2.48xlarge", role, model=model)
    flags, config = flags_of(spec), neuron_config(spec)
    assert config["num_batched_tokens_buckets"][-1] == int(flags["--max-num-batched-tokens"])
    assert config["num_seqs_buckets"][-1] == int(flags["--max-num-seqs"])
    assert config["kv_segment_size_buckets"] == config["num_batched_tokens_buckets"]
    assert flags["--block-size"] == "32"
    assert ("--max-logprobs" in flags) is (role == "decode")
    transfer = spec.kv_transfer_config()
    assert transfer["kv_buffer_device"] == "cuda"
    assert transfer["kv_connector_extra_config"]["backends"] == ["LIBFABRIC"]
    forbidden = {"NEURON_RT_VISIBLE_CORES", "NEURON_RT_MAP_HBM"}
    assert not forbidden & set(spec.environment())


def test_sliding_windows_take_the_plugins_connector_where_ours_is_not_used() -> None:
    for connector, name in (("upstream", "NeuronNixlConnector"), ("neuron-pd", "NixlConnector")):
        spec = engine("trn2.48xlarge", model="openai/gpt-oss-20b", connector=connector)
        assert spec.kv_transfer_config()["kv_connector"] == name


def test_on_one_neuron_machine_starts_are_staggered() -> None:
    decode = engine("trn2.48xlarge", "decode", **ONE_NODE)
    assert any("start decode about 10 s after prefill" in note for note in decode.notes)
    third = engine("trn2.48xlarge", model="Qwen/Qwen3-8B", engines=3, index=2)
    assert any("start it 20 s after the first prefill engine" in note for note in third.notes)


def test_where_hbm_cannot_be_registered_kv_is_staged() -> None:
    spec = engine("trn2.3xlarge", model="Qwen/Qwen3-8B")
    extra = spec.kv_transfer_config()["kv_connector_extra_config"]
    assert (extra["buffer"], extra["backends"]) == ("staged", ["UCX"])
    with pytest.raises(UsageError, match=r"upstream's connector cannot register the memory of trn2.3xlarge"):
        engine("trn2.3xlarge", model="Qwen/Qwen3-8B", connector="upstream")
    with pytest.raises(UsageError, match="pins nothing: use --retention lease"):
        engine("trn2.3xlarge", model="Qwen/Qwen3-8B", retention="pin")
    assert "buffer" not in engine("trn2.48xlarge").kv_transfer_config()["kv_connector_extra_config"]


def test_the_nxd_stack_is_another_accelerator() -> None:
    spec = engine("trn1.32xlarge", model="Qwen/Qwen3-8B")
    assert spec.environment()["NEURON_RT_VISIBLE_CORES"] == "0-7"
    assert "--additional-config" not in flags_of(spec)
    assert spec.kv_transfer_config()["kv_buffer_device"] == "cpu"
    with pytest.raises(
        UsageError, match=r"Qwen3-32B has no settings for trn1.32xlarge \(neuron-nxd\), only for cuda, neu"
    ):
        engine("trn1.32xlarge")


def test_the_rust_front_end_is_not_selected() -> None:
    assert engine("p5en.48xlarge").environment()["VLLM_USE_RUST_FRONTEND"] == "0"


def test_a_persons_transfer_configuration_is_merged_into_ours() -> None:
    given = '{"kv_rank": 7, "kv_connector_extra_config": {"kv_recompute_threshold": "auto", "num_threads": 4}}'
    config = engine("p5en.48xlarge", "prefill", "--kv-transfer-config", given).kv_transfer_config()
    assert (config["kv_rank"], config["kv_role"]) == (7, "kv_producer")
    extra = config["kv_connector_extra_config"]
    assert (extra["kv_recompute_threshold"], extra["num_threads"], extra["backends"]) == ("auto", 4, ["LIBFABRIC"])


@pytest.mark.parametrize(("version", "kept"), [("0.29.0", True), ("0.31.1", True), ("0.32.0", False), (None, True)])
def test_ranks_are_left_out_for_a_vllm_that_refuses_them(version: str | None, kept: bool) -> None:
    config = article("prefill", True).for_vllm(version).kv_transfer_config()
    assert ("kv_rank" in config, "kv_parallel_size" in config) == (kept, kept)
    assert config["engine_id"] == "prefill-engine-001"
