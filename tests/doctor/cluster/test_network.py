from dataclasses import replace

import pytest
from aiohttp import web

from neuron_pd.doctor.cluster import network
from neuron_pd.doctor.cluster.place import Cluster, Engine
from neuron_pd.doctor.findings import Verdict
from tests.core.test_control import INFO
from tests.doctor.cluster.clusters import failed, of, said
from tests.doctor.sites import look
from tests.fakes.engine import FakeEngine
from tests.launcher.plans import free_port


def cluster(*hosts: tuple[str, str], port: int = 0) -> Cluster:
    """Engines by the host of their API and that of their side channel."""
    roles = ("prefill", "decode")
    infos = [replace(INFO, side_channel_host=channel, side_channel_port=port) for _, channel in hosts]
    engines = [
        Engine(role, f"http://{host}:8100", status=200, info=info)
        for role, (host, _), info in zip(roles, hosts, infos, strict=False)
    ]
    return Cluster(engines=engines, seconds=1.0)


async def test_side_channels_that_can_be_reached() -> None:
    async with FakeEngine("prefill") as prefill:
        place = {"side_channel_host": "127.0.0.1", "side_channel_port": prefill.port}
        async with FakeEngine("decode", **place) as decode:
            assert prefill.info is not None
            prefill.info |= place
            results = await of([], [prefill.url], [decode.url], probes=network.PROBES)
            assert not failed(results)
            assert said(results, "side channels") == [
                f"{role} {engine.url}: on 127.0.0.1:{prefill.port}, and reachable"
                for role, engine in (("prefill", prefill), ("decode", decode))
            ]


@pytest.mark.parametrize(
    ("host", "why"), [("255.255.255.255", "cannot be reached"), ("no-such-host.invalid", "does not resolve")]
)
async def test_an_unroutable_side_channel_is_named(host: str, why: str) -> None:
    async with FakeEngine("decode", side_channel_host=host, side_channel_port=5601) as decode:
        (bad,) = failed(await of([], [], [decode.url], probes=network.PROBES))
        assert (bad.probe, bad.finding.about) == ("side channels", f"decode {decode.url}")
        assert f"its side channel on {host}:5601 cannot be reached" in bad.finding.seen
        assert why in bad.finding.seen
        assert "--decode-host" in bad.finding.fix


async def test_a_side_channel_that_nobody_listens_on() -> None:
    port = free_port()
    async with FakeEngine("decode", side_channel_host="127.0.0.1", side_channel_port=port) as decode:
        (bad,) = failed(await of([], [], [decode.url], probes=network.PROBES))
        assert "refused" in bad.finding.seen


@pytest.mark.parametrize("channel", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("here", ["10.0.0.1", "localhost"])
def test_localhost_in_a_cluster_of_two_hosts(channel: str, here: str) -> None:
    """One of which may be the one that the doctor runs on."""
    prefill, decode = look(network.side_channels, cluster((here, channel), ("10.0.0.2", channel)))
    assert prefill.verdict is decode.verdict is Verdict.FAILED
    assert prefill.seen == f"its side channel is on {channel}, where no other host reaches it"
    assert "--prefill-host" in prefill.fix


def test_every_address_is_one_only_through_our_proxy() -> None:
    finding, _ = look(network.side_channels, cluster(("10.0.0.1", "0.0.0.0"), ("10.0.0.2", "::")))
    assert finding.verdict is Verdict.WARNING
    assert finding.seen == "its side channel is on 0.0.0.0: only our proxy puts 10.0.0.1 in the place of that"


def test_localhost_where_both_are_on_one_host() -> None:
    findings = look(network.side_channels, cluster(("10.0.0.1", "127.0.0.1"), ("10.0.0.1", "127.0.0.1")))
    assert {finding.verdict for finding in findings} == {Verdict.OK}


def test_an_engine_that_does_not_say() -> None:
    (finding,) = look(network.side_channels, cluster(("127.0.0.1", "")))
    assert finding.verdict is Verdict.NOT_APPLICABLE


async def test_clocks() -> None:
    async def late(request: web.Request) -> web.Response:
        return web.json_response({}, headers={"Date": "Mon, 01 Jan 2024 00:00:00 GMT"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", late)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    results = await of([], [url], probes=(network.clocks,))
    await runner.cleanup()
    (finding,) = [result.finding for result in results]
    assert finding.verdict is Verdict.WARNING
    assert "behind this machine's" in finding.seen
    async with FakeEngine("decode") as decode:
        (finding,) = [result.finding for result in await of([], [decode.url], probes=(network.clocks,))]
        assert finding.verdict is Verdict.OK
