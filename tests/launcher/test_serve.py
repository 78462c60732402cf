import json
import sys
from pathlib import Path
from typing import Any

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.launcher.serve import ServeSpec, base_url, new_engine_id, serve_spec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    return directory


def transfer(spec: ServeSpec) -> dict[str, Any]:
    argv = spec.argv()
    return json.loads(argv[argv.index("--kv-transfer-config") + 1])  # type: ignore[no-any-return]


def test_the_command_of_a_prefill_engine(model: Path) -> None:
    spec = serve_spec("prefill", str(model), cores="0-1", token_file=Path("/t"))
    argv = spec.argv()
    assert argv[:5] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    assert argv[-1] == json.dumps(spec.kv_transfer_config(), separators=(",", ":"))
    for flag, value in [
        ("--served-model-name", "model"),
        ("--dtype", "float32"),
        ("--max-model-len", "4096"),
        ("--max-num-seqs", "8"),
        ("--port", "8100"),
        ("--host", "127.0.0.1"),
        ("--middleware", "neuron_pd.connector.control.ControlPath"),
    ]:
        assert argv[argv.index(flag) + 1] == value
    assert "--enforce-eager" in argv
    assert "--no-enable-prefix-caching" not in argv
    assert spec.environment() == {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "OMP_NUM_THREADS": "2",
        "UCX_TLS": "tcp,shm,self",
        "VLLM_USE_RUST_FRONTEND": "0",
        "NEURON_PD_CONTROL_TOKEN_FILE": "/t",
    }


def test_the_transfer_configuration(model: Path) -> None:
    config = transfer(serve_spec("prefill", str(model)))
    assert config.pop("engine_id").startswith("prefill-")
    assert config == {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "neuron_pd.connector.connector",
        "kv_role": "kv_producer",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "backends": ["UCX"],
            "bidirectional_kv_xfer": True,
            "kv_recompute_threshold": 64,
            "retention": "lease",
            "read_lease_seconds": 30,
            "kv_lease_duration": 30,
            "decoder_kv_blocks_ttl": 480,
            "ledger_bytes": 67108864,
        },
    }


def test_decode_differs_where_it_must(model: Path) -> None:
    spec = serve_spec("decode", str(model), bidir=False)
    assert (spec.port, spec.side_channel_port) == (8200, 5601)
    assert transfer(spec)["kv_role"] == "kv_consumer"
    assert transfer(spec)["kv_connector_extra_config"]["bidirectional_kv_xfer"] is False


def test_what_is_asked_for_wins(model: Path) -> None:
    spec = serve_spec(
        "prefill", str(model), prefix_caching=False, max_model_len=100, kv_cache_gib=7, dtype=None,
        extra_args=("--max-num-seqs", "3"),
    )  # fmt: skip
    argv = spec.argv()
    assert "--no-enable-prefix-caching" in argv
    assert argv.count("--max-num-seqs") == 1
    assert argv[argv.index("--max-num-seqs") + 1] == "3"
    assert spec.environment()["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert spec.dtype == "float32"


def test_a_hub_name_is_left_to_vllm() -> None:
    spec = serve_spec("prefill", "owner/name")
    assert "HF_HUB_OFFLINE" not in spec.environment()
    assert spec.max_model_len == 32768


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"role": "both"}, "unknown role 'both': use prefill or decode"),
        ({"instance": "abacus"}, "unknown instance 'abacus'"),
        ({"retention": "for ever"}, "unknown retention 'for ever': use lease or pin"),
        ({"max_model_len": 5000}, "model can do 4096 tokens: lower --max-model-len 5000"),
        ({"cores": "one"}, "'one' is not a list of cores"),
    ],
)
def test_wrong_input(given_: dict[str, Any], message: str, model: Path) -> None:
    role = given_.pop("role", "prefill")
    with pytest.raises(UsageError, match=message):
        serve_spec(role, str(model), **given_)


def test_an_engine_id_is_never_used_twice() -> None:
    assert len({new_engine_id("prefill") for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:1"), ("0.0.0.0", "http://127.0.0.1:1"), ("::1", "http://[::1]:1"),
     ("::", "http://[::1]:1"), ("node", "http://node:1")],
)  # fmt: skip
def test_urls(host: str, url: str) -> None:
    assert base_url(host, 1) == url
