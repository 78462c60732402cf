from pathlib import Path

import pytest

from neuron_pd.launcher.cores import available_cores, parse_cores
from neuron_pd.launcher.topology import cpu_topology


def test_the_engines_share_the_cores_and_what_they_serve(tmp_path: Path) -> None:
    topology = cpu_topology(tmp_path, served_name="it", bidir=False, prefill_prefix_caching=False, proxy_port=9)
    prefill, decode = topology.prefill, topology.decode
    cores = [parse_cores(spec.cores) for spec in (prefill, decode)]
    assert set(cores[0] + cores[1]) == set(available_cores())
    assert prefill.served_name == decode.served_name == "it"
    assert (prefill.bidir, decode.bidir) == (False, False)
    assert (prefill.prefix_caching, decode.prefix_caching) == (False, True)
    assert prefill.engine_id != decode.engine_id
    assert topology.urls() == {
        "prefill": "http://127.0.0.1:8100", "decode": "http://127.0.0.1:8200", "proxy": "http://127.0.0.1:9",
    }  # fmt: skip


def test_the_proxy_comes_after_both_engines(tmp_path: Path) -> None:
    topology = cpu_topology(tmp_path, run_dir=tmp_path / "run", host="0.0.0.0")
    (prefill, decode), (proxy,) = topology.stages()
    assert (prefill.name, decode.name, proxy.name) == ("prefill", "decode", "proxy")
    assert prefill.health_url == "http://127.0.0.1:8100/health"
    assert proxy.health_url == "http://127.0.0.1:8000/ready"
    assert decode.log == tmp_path / "run" / "decode.log"
    assert proxy.argv[proxy.argv.index("--prefill") + 1] == "http://127.0.0.1:8100"
    assert proxy.argv[proxy.argv.index("--host") + 1] == "0.0.0.0"


def test_the_token_is_shared_by_its_file_and_stands_in_no_command(tmp_path: Path) -> None:
    topology = cpu_topology(tmp_path)
    token = topology.token()
    assert token
    for child in (child for stage in topology.stages() for child in stage):
        assert child.environment["NEURON_PD_CONTROL_TOKEN_FILE"] == str(topology.token_file)
        assert token not in " ".join([*child.argv, *child.environment.values()])


def test_a_token_of_the_environment_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PD_CONTROL_TOKEN", "secret")
    topology = cpu_topology(tmp_path)
    assert topology.token_file is None
    assert topology.token() == "secret"
