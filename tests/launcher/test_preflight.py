import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_pd.errors import PortInUse, UsageError
from neuron_pd.launcher import ports, preflight, resources
from neuron_pd.launcher.serve import serve_spec
from neuron_pd.launcher.topology import cpu_topology
from tests.launcher.plans import free_port


@pytest.fixture
def model(tmp_path: Path) -> str:
    config = {
        "max_position_embeddings": 4096, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
        "hidden_size": 512, "dtype": "bfloat16",
    }  # fmt: skip
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(bytes(1000))
    return str(directory)


def test_two_on_one_port() -> None:
    with pytest.raises(UsageError, match="prefill and decode are both on port 1: give one of them another"):
        ports.check_distinct([("127.0.0.1", 1, "prefill"), ("127.0.0.1", 1, "decode")])
    with pytest.raises(UsageError, match="both on port 1"):
        ports.check_distinct([("127.0.0.1", 1, "prefill"), ("0.0.0.0", 1, "decode")])
    ports.check_distinct([("10.0.0.1", 1, "prefill"), ("10.0.0.2", 1, "decode")])


@pytest.mark.parametrize(
    ("name", "hub", "message"),
    [
        ("./none", True, "there is no model directory ./none"),
        ("/none/none", True, "there is no model directory"),
        ("none", True, "there is no model directory none: give one, or an embedded model: tiny or smollm2"),
        ("owner/name", False, "there is no model directory owner/name"),
        ("-owner/name", True, "there is no model directory -owner/name"),
    ],
)
def test_a_missing_model(name: str, hub: bool, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        preflight.check_model(name, hub)


def test_models(model: str, tmp_path: Path) -> None:
    for name in ("tiny", "smollm2", model, "owner/name"):
        preflight.check_model(name)
    with pytest.raises(UsageError, match=r"is not a model: it has no config.json"):
        preflight.check_model(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        preflight.check_model(str(tmp_path / "file"))


def test_too_little_memory(model: str) -> None:
    specs = [serve_spec(role, model, kv_cache_gib=10**6) for role in ("prefill", "decode")]
    with pytest.raises(UsageError, match=r"too little memory: prefill and decode need 2\d{6}\.\d GiB and .* available"):
        preflight.check_resources(specs)
    # 500 numbers of two bytes, held in four, beside the KV and the server.
    assert resources.resident_memory(serve_spec("prefill", model, kv_cache_gib=1)) == 2000 + resources.GIB * 5 // 2


def test_a_sequence_that_does_not_fit_into_the_kv_cache(model: str) -> None:
    spec = serve_spec("prefill", model, kv_cache_gib=1)
    preflight.check_kv_fits(spec)
    huge = serve_spec("prefill", "owner/name", kv_cache_gib=1)
    preflight.check_kv_fits(huge)  # nothing known, nothing said
    (Path(model) / "config.json").write_text(json.dumps({
        "num_hidden_layers": 64, "num_attention_heads": 64, "hidden_size": 8192, "max_position_embeddings": 4096,
    }))  # fmt: skip
    with pytest.raises(
        UsageError, match="4096 tokens of this model take 16 GiB of KV, decode has 1 GiB: raise --kv-cac"
    ):
        preflight.check_kv_fits(serve_spec("decode", model, kv_cache_gib=1))


def test_too_little_disk(tmp_path: Path) -> None:
    preflight.check_disk(tmp_path / "not" / "yet", 1, "logs", "--run-dir")
    with pytest.raises(UsageError, match=r"too little disk for logs: .* MiB free .* or change --run-dir"):
        preflight.check_disk(tmp_path, 2**60, "logs", "--run-dir")


def test_memory_of_a_cgroup(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text("1000\n")
    (tmp_path / "a" / "memory.current").write_text("900\n")
    (tmp_path / "a" / "memory.stat").write_text("anon 700\ninactive_file 150\n")
    assert resources.available_memory(tmp_path, own) == 250
    assert resources.available_memory(tmp_path / "none", tmp_path / "none") > 2**20


@pytest.mark.vllm
def test_a_whole_topology(model: str, listener: int, tmp_path: Path) -> None:
    names = ("prefill_port", "decode_port", "proxy_port", "prefill_side_channel_port", "decode_side_channel_port")
    given = {name: free_port() for name in names}
    good = cpu_topology(model, kv_cache_gib=1, run_dir=tmp_path / "run", **given)
    preflight.check_topology(good)
    assert not good.run_dir.exists()
    for name in names:
        with pytest.raises(PortInUse, match=f"port {listener}"):
            preflight.check_topology(cpu_topology(model, kv_cache_gib=1, **{**given, name: listener}))
    with pytest.raises(UsageError, match="both on port"):
        preflight.check_topology(cpu_topology(model, **{**given, "proxy_port": given["decode_port"]}))


def starting(state: Path, port: int) -> "subprocess.Popen[str]":
    """Another process that has passed its checks and does not listen yet."""
    keep = f"from neuron_pd.launcher.ports import reserve_port; reserve_port('127.0.0.1', {port}, 'x')"
    code = f"{keep}; print('kept', flush=True); input()"
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_port_is_kept_by_the_start_that_was_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(ports, "_reserved", {})
    first = starting(tmp_path, 45678)
    assert first.stdout is not None
    assert first.stdout.readline() == "kept\n"
    with pytest.raises(PortInUse, match=rf"port 45678, which prefill needs, is kept by pid {first.pid} \("):
        ports.reserve_port("127.0.0.1", 45678, "prefill")
    ports.reserve_port("127.0.0.1", 45679, "prefill")
    first.communicate("")
    ports.reserve_port("127.0.0.1", 45678, "prefill")
    ports.reserve_port("127.0.0.1", 45678, "prefill")
    for lock in ports._reserved.values():
        os.close(lock)
