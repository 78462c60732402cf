import asyncio
import os
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from neuron_pd.doctor.findings import Finding, Verdict
from neuron_pd.doctor.probes import network
from neuron_pd.profiles import Profiles
from tests.doctor.sites import Machine, look, only
from tests.launcher.plans import free_port


@pytest.fixture
def trn2(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "trn2.48xlarge")


def own(machine: Machine, **hosts: str) -> Finding:
    return look(network.side_channel, machine.site(role="prefill", hosts=hosts))[0]


def test_an_address_of_this_machine(trn2: Machine) -> None:
    assert own(trn2, prefill="127.0.0.1", decode="127.0.0.1").verdict is Verdict.OK
    assert own(trn2).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0.0.0.0"])
def test_localhost_in_a_cluster_of_two(trn2: Machine, host: str) -> None:
    finding = own(trn2, prefill=host, decode="no-such-host.invalid")
    assert finding.verdict is Verdict.FAILED
    assert finding.seen == f"{host}, which decode cannot reach"
    assert "--prefill-host (P_IP)" in finding.fix


def test_an_address_of_another_machine(trn2: Machine) -> None:
    finding = own(trn2, prefill="203.0.113.7", decode="127.0.0.1")
    assert finding.seen == "203.0.113.7 is not an address of this machine"


def test_the_environment_goes_before_the_options(trn2: Machine) -> None:
    trn2.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = "localhost"
    assert own(trn2, prefill="127.0.0.1", decode="no-such-host.invalid").seen.startswith("localhost")


def test_a_peer_that_cannot_be_reached(trn2: Machine) -> None:
    hosts = {"prefill": "127.0.0.1", "decode": "no-such-host.invalid"}
    finding = look(network.side_channel, trn2.site(role="prefill", hosts=hosts))[1]
    assert finding.verdict is Verdict.FAILED
    assert "no-such-host.invalid:5659 cannot be reached" in finding.seen
    assert "security group" in finding.fix


def profile(place: Path, **ports: int) -> Profiles:
    body = {"kind": "instance", "extends": "cpu", "name": "mine", "roles": {"prefill": ports}}
    path = place / f"{'-'.join(map(str, ports.values()))}.yaml"  # a file is read once
    path.write_text(yaml.safe_dump(body))
    return Profiles((path,))


def test_ports(trn2: Machine, tmp_path: Path, listener: int) -> None:
    given = {"role": "prefill", "instance_name": "mine"}
    free = profile(tmp_path, port=free_port(), side_channel_port=free_port())
    assert only(network.ports, trn2.site(profiles=free, **given)).verdict is Verdict.OK
    taken = profile(tmp_path, port=free_port(), side_channel_port=listener)
    finding = look(network.ports, trn2.site(profiles=taken, **given))[0]
    assert (finding.verdict, finding.about) == (Verdict.FAILED, str(listener))
    assert f"port {listener}, which prefill's side channel needs, is in use by pid" in finding.seen
    assert "stop it, or choose another port" in finding.fix
    ours = frozenset((os.getpid(),))  # the engine itself, which is up
    finding = look(network.ports, trn2.site(profiles=taken, ours=ours, **given))[0]
    assert (finding.verdict, finding.seen) == (Verdict.OK, "prefill's side channel is up on it")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])  # everywhere, and at its node's address only
async def test_a_port_with_an_engine_on_it(trn2: Machine, tmp_path: Path, host: str) -> None:
    async def healthy(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/health", healthy)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    port = runner.addresses[0][1]
    profiles = profile(tmp_path, port=port, side_channel_port=free_port())
    site = trn2.site(role="prefill", instance_name="mine", profiles=profiles, hosts={"prefill": host})
    finding = (await asyncio.to_thread(look, network.ports, site))[0]
    await runner.cleanup()
    assert (finding.verdict, finding.seen) == (Verdict.OK, "prefill's API is up on it")


@pytest.mark.parametrize(
    ("timedatectl", "chronyc", "verdict"),
    [
        ("echo yes", "exit 1", Verdict.OK),
        ("echo no", "exit 1", Verdict.WARNING),
        ("exit 1", "echo 'Leap status     : Normal'", Verdict.OK),
        ("exit 1", "echo 'Leap status     : Not synchronised'", Verdict.WARNING),
        ("exit 1", "exit 1", Verdict.NOT_APPLICABLE),
    ],
)
def test_the_clock(trn2: Machine, timedatectl: str, chronyc: str, verdict: Verdict) -> None:
    trn2.tool("timedatectl", timedatectl)
    trn2.tool("chronyc", chronyc)
    assert only(network.clock, trn2.site()).verdict is verdict
