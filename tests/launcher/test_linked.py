import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from neuron_pd.launcher.link import End, Link
from neuron_pd.launcher.linked import LinkedTopology, linked_topology
from neuron_pd.launcher.supervisor import Supervisor
from neuron_pd.launcher.topology import Topology

from .plans import Plan, left_of

LINK = Link(
    End("npd-1-2-prefill", "198.18.7.1", "198.18.7.6", "npd7p", "198.18.7.5"),
    End("npd-1-2-decode", "198.18.7.2", "198.18.7.10", "npd7d", "198.18.7.9"),
)


def test_engines_run_inside_and_the_proxy_outside(tmp_path: Path) -> None:
    topology = linked_topology(tmp_path, LINK, proxy_port=28000, run_dir=tmp_path, max_model_len=4096)
    (prefill, decode), (proxy,) = topology.stages()
    for child, end in ((prefill, LINK.prefill), (decode, LINK.decode)):
        assert list(child.argv[1:4]) == ["netns", "exec", end.namespace]
        assert child.health_url.startswith(f"http://{end.api}:")
        assert child.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == end.data
        assert child.environment["VLLM_HOST_IP"] == end.data
        assert (child.environment["UCX_TLS"], child.environment["UCX_NET_DEVICES"]) == ("tcp,self", "kv0")
        assert child.argv[child.argv.index("--host") + 1] == end.api
    assert "netns" not in proxy.argv
    assert set(topology.urls()) == {"prefill", "decode", "proxy"}
    assert prefill.environment["VLLM_CPU_OMP_THREADS_BIND"] != decode.environment["VLLM_CPU_OMP_THREADS_BIND"]
    assert "--no-enable-prefix-caching" in prefill.argv
    assert "--no-enable-prefix-caching" not in decode.argv


def test_the_threshold_is_passed_on(tmp_path: Path) -> None:
    for threshold, value in (("auto", "auto"), ("256", 256), (None, 64)):
        topology = linked_topology(tmp_path, LINK, proxy_port=28000, run_dir=tmp_path, threshold=threshold)
        config = topology.topology.prefill.kv_transfer_config()["kv_connector_extra_config"]
        assert config["kv_recompute_threshold"] == value


def namespace_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip")
async def test_real_processes_run_in_the_ends_of_a_real_link_and_none_outlives_it(tmp_path: Path) -> None:
    own = tmp_path / "owner"
    with Link.plan() as link:
        plan = Plan(tmp_path, own)
        for name, end in (("prefill", link.prefill), ("decode", link.decode)):
            child = plan.add(name, host="0.0.0.0")
            health = child.health_url.replace("127.0.0.1", end.api)
            plan.built[-1][-1] = replace(child, health_url=health)
        plan.then()
        plan.add("proxy", kind="proxy")
        async with Supervisor(LinkedTopology(cast(Topology, plan), link)):
            places = {namespace_of(process.pid) for process in left_of(own)}
            assert len(places) == 3  # two namespaces, and this machine's
        assert left_of(own) == []
