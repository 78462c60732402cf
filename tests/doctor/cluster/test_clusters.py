"""A cluster in good order, and with one thing broken at a time: that thing is named, and nothing else has failed."""

from typing import Any

import pytest

from neuron_pd.doctor.findings import Verdict
from neuron_pd.proxy.settings import Conversations
from tests.doctor.cluster.clusters import examined, failed, of, said
from tests.fakes.engine import FakeEngine
from tests.proxy.conftest import pytest_asyncio_loop_factories, running

__all__ = ["pytest_asyncio_loop_factories"]


async def test_all_is_well() -> None:
    async with running(token="secret") as cluster:
        results = await examined(cluster, "secret")
        assert not failed(results)
        assert said(results, "proxy") == [f"{cluster.url}: ready: 1 of 1 prefill, 1 of 1 decode usable"]
        assert said(results, "engines") == [f"prefill {cluster.prefill.url}: up", f"decode {cluster.decode.url}: up"]
        (reuse,) = [result.finding for result in results if result.probe == "reuse"]
        assert reuse.seen.startswith("works: ")
        assert "path read_back" in reuse.seen
        assert "secret" not in str(results)


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_bidirectional_off_on_one_side(side: str) -> None:
    async with running() as cluster:
        engine = cluster.prefill if side == "prefill" else cluster.decode
        assert engine.info is not None
        engine.info["bidirectional"] = False
        bad = failed(await examined(cluster))
        assert [result.probe for result in bad] == ["engine settings", "reuse"]
        assert bad[0].finding.about == f"{side} {engine.url}"
        assert bad[0].finding.seen.startswith("bidirectional_kv_xfer is off")
        assert f"{side}_without_reuse" in bad[1].finding.seen


@pytest.mark.parametrize("ours", ["other", None])
async def test_a_wrong_token_here(ours: str | None) -> None:
    async with running(token="secret") as cluster:
        bad = failed(await examined(cluster, ours))
        assert [result.probe for result in bad] == ["control token", "control token"]
        assert "NEURON_PD_CONTROL_TOKEN_FILE" in bad[0].finding.fix
        assert ("wrong control token" in bad[0].finding.seen) is (ours is not None)


async def test_a_wrong_token_on_one_engine() -> None:
    """The proxy and the doctor have the same, and one engine has another."""
    async with running(token="secret") as cluster:
        cluster.decode.token = "another"
        bad = failed(await examined(cluster, "secret"))
        assert [result.probe for result in bad] == ["control token", "proxy's view", "reuse"]
        assert bad[0].finding.about == f"decode {cluster.decode.url}"
        assert "it refuses the control token" in bad[1].finding.seen


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        ({"block_size": 32}, "blocks of 32 tokens here, 16 at"),
        ({"vllm": "0.29.0"}, "vLLM 0.29.0 here, 0.32.0 at"),
        ({"retention": "pin", "decoder_kv_blocks_ttl": 99999.0}, "retention pin here, lease at"),
        ({"model": "/models/other"}, "model other here, fake at"),
    ],
)
async def test_two_that_do_not_fit(wrong: dict[str, Any], seen: str) -> None:
    async with running() as cluster:
        assert cluster.decode.info is not None
        cluster.decode.info.update(wrong)
        misfit = [result for result in failed(await examined(cluster, self_test=False)) if result.probe != "proxy"]
        assert [result.probe for result in misfit] == ["P and D"]
        assert misfit[0].finding.seen.startswith(seen)
        assert misfit[0].finding.about == f"decode {cluster.decode.url}"


@pytest.mark.parametrize("wrong", [{"kv_layout": "NHD"}, {"version": "9"}])
async def test_lesser_misfits_are_warnings(wrong: dict[str, Any]) -> None:
    async with running() as cluster:
        assert cluster.decode.info is not None
        cluster.decode.info.update(wrong)
        results = await examined(cluster, self_test=False)
        assert not failed(results)
        (warned,) = [one for one in results if one.finding.verdict is Verdict.WARNING]
        assert warned.probe == "P and D"


async def test_an_old_nixl() -> None:
    async with running() as cluster:
        assert cluster.prefill.info is not None
        cluster.prefill.info["nixl"] = "1.3.0"
        (bad,) = failed(await examined(cluster))
        assert (bad.probe, bad.finding.about) == ("engine settings", f"prefill {cluster.prefill.url}")
        assert "NIXL 1.3.0 is older than 1.4.1" in bad.finding.seen


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_a_stopped_engine(side: str) -> None:
    async with running() as cluster:
        engine = cluster.prefill if side == "prefill" else cluster.decode
        await engine.stop()
        results = await examined(cluster)
        bad = failed(results)
        assert [result.probe for result in bad] == ["proxy", "engines", "reuse"]
        assert bad[1].finding.about == f"{side} {engine.url}"
        assert "connection refused" in bad[1].finding.seen
        assert f"--role {side}" in bad[1].finding.fix


async def test_an_unhealthy_engine() -> None:
    async with running() as cluster:
        cluster.decode.healthy = False
        bad = failed(await examined(cluster, self_test=False))
        assert bad[1].finding.seen == "it is not well: GET /health answers 503"


async def test_blocks_that_are_gone_before_the_proxy_forgets() -> None:
    async with running(conversations=Conversations(ttl=600.0)) as cluster:
        for engine in (cluster.prefill, cluster.decode):
            assert engine.info is not None
            engine.info |= {"retention": "pin", "decoder_kv_blocks_ttl": 480.0}
        (bad,) = failed(await examined(cluster, self_test=False))
        assert bad.probe == "proxy's view"
        assert "it keeps blocks for 480 s, and conversations are remembered for 600 s" in bad.finding.seen
        assert "--conversation-ttl" in bad.finding.fix


async def test_an_engine_without_our_connector() -> None:
    async with running() as cluster:
        cluster.decode.info = None
        bad = failed(await examined(cluster))
        assert [result.probe for result in bad] == ["connector", "reuse"]
        assert "no neuron-pd connector" in bad[0].finding.seen


async def test_an_engine_of_another_version() -> None:
    async with running() as cluster:
        cluster.decode.info = {"hello": 1}
        bad = failed(await examined(cluster, self_test=False))
        assert bad[0].probe == "connector"
        assert "speaks another version" in bad[0].finding.seen


async def test_no_proxy_there() -> None:
    async with FakeEngine("decode") as engine:
        gone = engine.url
    (bad,) = failed(await of([gone]))
    assert (bad.probe, bad.finding.seen) == ("proxy", "no answer: connection refused")


async def test_engines_without_a_proxy() -> None:
    """Named as engines, or found out to be some; roles come from what they say."""
    async with FakeEngine("prefill") as prefill, FakeEngine("decode", block_size=32) as decode:
        for results in (await of([prefill.url, decode.url]), await of([], [prefill.url], [decode.url])):
            (bad,) = failed(results)
            assert bad.finding.about == f"decode {decode.url}"
            assert said(results, "reuse") == [": no proxy was named"]


async def test_swapped_roles() -> None:
    async with FakeEngine("prefill") as prefill, FakeEngine("decode") as decode:
        bad = failed(await of([], [decode.url], [prefill.url]))
        assert {result.probe for result in bad} == {"engine settings"}
        assert "it says its role is decode" in bad[0].finding.seen
