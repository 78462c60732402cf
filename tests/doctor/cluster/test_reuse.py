import re
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from neuron_pd.core.control import AcquireMiss
from neuron_pd.core.decision import Reason
from neuron_pd.doctor.cluster import reuse
from neuron_pd.doctor.cluster.place import Cluster, Engine
from neuron_pd.doctor.cluster.reasons import REASONS, explain
from neuron_pd.doctor.findings import Finding, Verdict
from tests.core.test_control import INFO
from tests.doctor.cluster.clusters import examined
from tests.proxy import conftest as proxies
from tests.proxy.conftest import pytest_asyncio_loop_factories, running, until

__all__ = ["pytest_asyncio_loop_factories"]

PROXY = Path(proxies.__file__).parents[2] / "neuron_pd" / "proxy"


async def outcome(cluster: proxies.Cluster) -> Finding:
    (result,) = await examined(cluster, probes=reuse.PROBES)
    return result.finding


async def test_the_second_turn_goes_on_from_the_first() -> None:
    async with running() as cluster:
        cluster.decode.reply = "x" * 20
        assert (await outcome(cluster)).verdict is Verdict.OK
        first, second = (request.body for request in cluster.decode.generated)
        assert second["prompt"][: len(first["prompt"]) + 20] == [*first["prompt"], *[ord("x")] * 20]
        assert first["max_tokens"] == 16 + 64  # a block and the threshold
        await until(lambda: not cluster.decode.records)  # nothing is kept of the conversation
        await outcome(cluster)
        assert cluster.decode.generated[2].body["prompt"] != first["prompt"]


@pytest.mark.parametrize(
    ("miss", "seen"),
    [
        (AcquireMiss.EVICTED, "evicted, D's prefix cache has let go of it"),
        (AcquireMiss.DISABLED, "disabled, D runs without bidirectional_kv_xfer"),
    ],
)
async def test_a_miss_is_explained(miss: AcquireMiss, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing(handle: str) -> web.Response:
        return web.json_response({"reason": miss.value}, status=404)

    async with running() as cluster:
        monkeypatch.setattr(cluster.decode, "_acquire", missing)
        finding = await outcome(cluster)
        assert finding.verdict is Verdict.FAILED
        assert seen in finding.seen
        assert finding.fix == explain(miss)[1]


async def test_no_report() -> None:
    async with running() as cluster:
        cluster.prefill.info = None
        await cluster.proxy.probe.once()
        finding = await outcome(cluster)
        assert finding.verdict is Verdict.FAILED
        assert "see connector" in finding.fix


@pytest.mark.parametrize(("status", "hint"), [(500, "see the proxy's and the engines' logs"), (401, "--api-key-env")])
async def test_a_turn_that_fails(status: int, hint: str) -> None:
    async with running() as cluster:
        cluster.prefill.faults.status = status
        finding = await outcome(cluster)
        assert finding.verdict is Verdict.FAILED
        assert "a turn through the proxy fails with" in finding.seen
        assert "told to" in finding.seen
        assert hint in finding.fix


async def test_a_turn_that_does_not_end() -> None:
    async with running() as cluster:
        cluster.prefill.faults.hang = True
        (result,) = await examined(cluster, probes=reuse.PROBES, self_test_seconds=0.3)
        assert "no answer within 0.3 s" in result.finding.seen


def test_sizes_make_a_read_back_due() -> None:
    """Whatever the blocks and P's own cache, D holds the threshold more in whole blocks."""
    for block in (16, 32, 128):
        for threshold in (0, 64, 300, "auto"):
            info = replace(INFO, block_size=block, kv_recompute_threshold=threshold)
            sizes = reuse.Sizes.of(Cluster(engines=[Engine("decode", "http://d", info=info)]))
            held = (sizes.prompt + sizes.reply - 1) // block * block  # the last token's KV is not there
            least = threshold if isinstance(threshold, int) else 64
            assert held - sizes.prompt >= least


def test_every_reason_is_explained() -> None:
    """P's, D's, and those that the proxy's source returns."""
    assert {*Reason, *AcquireMiss} - {Reason.VERIFIED} <= set(REASONS)
    source = "".join((PROXY / name).read_text() for name in ("start.py", "offers.py"))
    returned = set(re.findall(r'return "([a-z_]+)"', source))
    assert {"none", "off", "offer_gone", "unverifiable"} <= returned <= set(REASONS)
