"""Turns that D serves alone, from the history in its own prefix cache."""

from typing import Any

import pytest

from neuron_pd.core import control
from neuron_pd.core.transfer import HANDLE
from neuron_pd.proxy.settings import Choice
from neuron_pd.proxy.ways import Direct
from tests.proxy.conftest import CHAT, Cluster, chat, running, until

LONG = "please tell me everything about the sea and the ships on it"
FIRST = chat(LONG, conversation_id="c")
SECOND = chat(LONG, "the reply", "go on", conversation_id="c")
ALWAYS = Choice(direct=Direct.ALWAYS)


async def two_turns(cluster: Cluster, second: dict[str, Any] = SECOND, **fields: Any) -> dict[str, str]:
    assert (await cluster.post(FIRST)).status == 200
    answer = await cluster.post({**second, **fields})
    assert answer.status == 200
    await cluster.proxy.leases.settle(5)
    return answer.turn


@pytest.mark.parametrize("stream", [False, True])
async def test_d_alone_gets_the_handle_and_the_lease_is_given_back(stream: bool) -> None:
    async with running(choice=ALWAYS) as cluster:
        turn = await two_turns(cluster, stream=stream)
        held = len(LONG) + len("<user><assistant>") + len("the reply")
        assert (turn["path"], turn["reason"], turn["local"], turn["reused"]) == ("direct", "asked_for", str(held), "0")
        assert len(cluster.prefill.generated) == 1
        params = cluster.decode.generated[1].body["kv_transfer_params"]
        assert list(params) == [HANDLE]
        assert not cluster.decode.leases
        assert len(cluster.decode.released) == 1
        metrics = cluster.proxy.metrics
        assert metrics.turns.get("direct") == 1
        assert metrics.reuse.get("hit", "asked_for") == 1
        # The next turn finds what the direct one left.
        third = await cluster.post(chat(LONG, "the reply", "go on", "the reply", "more", conversation_id="c"))
        assert third.turn["path"] == "direct"
        assert len(cluster.decode.at(control.ACQUIRE)) == 2


async def test_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "neuron_pd.proxy")
    async with running(choice=ALWAYS) as cluster:
        await two_turns(cluster)
    assert any("No prefill cache HIT path=direct reason=asked_for" in record.getMessage() for record in caplog.records)


async def test_the_lease_is_held_until_the_first_token() -> None:
    async with running(choice=ALWAYS) as cluster:
        await cluster.post(FIRST)
        cluster.decode.faults.stall_after = 0
        async with cluster.session.post(cluster.url + CHAT, json={**SECOND, "stream": True}) as response:
            assert response.status == 200
            assert len(cluster.decode.leases) == 1
            assert not cluster.decode.released
        await until(lambda: len(cluster.decode.released) == 1)


async def test_it_is_off_by_default(cluster: Cluster) -> None:
    assert (await two_turns(cluster))["path"] == "read_back"


async def test_auto_needs_measurements_and_then_takes_the_faster_way() -> None:
    """P is slow and D is not: once P was measured, what is new costs D less than the round through P."""
    async with running(choice=Choice(direct=Direct.AUTO)) as cluster:
        for turn in range(4):
            assert (await cluster.post(chat(f"{turn} {LONG}" * 20))).turn["path"] == "recompute"
        # The first turns took a millisecond or so each; say what a real P takes.
        engine = cluster.proxy.engines.prefill[0]
        for tokens in (500, 1000, 2000, 4000):
            engine.meters.prefill.computed(tokens, 0, 0.02 + tokens * 1e-3)
            engine.meters.transfer.read(tokens, 0.01)
        turn = await two_turns(cluster)
        assert (turn["path"], turn["reason"]) == ("direct", "cost")


async def test_auto_lets_streaming_replies_count() -> None:
    async with running(choice=Choice(direct=Direct.AUTO)) as cluster:
        engine, decode = cluster.proxy.engines.prefill[0], cluster.proxy.engines.decode[0]
        for tokens in (500, 1000, 2000, 4000):
            engine.meters.prefill.computed(tokens, 0, 0.02 + tokens * 1e-3)
        for _ in range(20):
            decode.begin(1)
        assert (await two_turns(cluster))["path"] == "read_back"
        for _ in range(20):
            decode.end(1)


@pytest.mark.parametrize(
    "second",
    [
        chat("quite another beginning of all this", "the reply", "go on", conversation_id="c"),
        chat(LONG, "the reply", conversation_id="c"),
        chat(LONG, conversation_id="c"),
        chat(LONG, "the reply", "go on", conversation_id="c", tools=[{"type": "function"}]),
    ],
    ids=["edited", "nothing-new", "regenerated", "other-tools"],
)
async def test_only_a_history_that_goes_on(second: dict[str, Any]) -> None:
    async with running(choice=ALWAYS) as cluster:
        assert (await two_turns(cluster, second))["path"] != "direct"
        assert len(cluster.prefill.generated) == 2


async def test_not_where_d_cannot_prefill() -> None:
    async with running(choice=ALWAYS) as cluster:
        assert cluster.decode.info is not None
        cluster.decode.info["accelerator"] = "neuron"
        await cluster.proxy.probe.once()
        assert (await two_turns(cluster))["path"] == "read_back"
        ready = (await cluster.get("/ready")).json
        problems = [problem for engine in ready["engines"] for problem in engine["problems"]]
        assert [problem["change"] for problem in problems] == ["leave --direct off"]


async def test_not_where_the_history_is_gone_or_reuse_is_declined() -> None:
    async with running(choice=ALWAYS) as cluster:
        await cluster.post(FIRST)
        answer = await cluster.post(SECOND, X_Neuron_PD_Reuse="off")
        assert answer.turn["path"] == "recompute"
        cluster.decode.records.clear()
        answer = await cluster.post(
            chat(LONG, "the reply", "go on", "the reply", "more", conversation_id="c"),
        )
        assert (answer.turn["path"], answer.turn["reason"]) == ("recompute", "no_lease")


async def test_a_conversation_that_moves_goes_through_p() -> None:
    async with running(decode=2, choice=ALWAYS) as cluster:
        await cluster.post(FIRST)
        cluster.proxy.roster.drain(cluster.proxy.engines.decode[0])
        answer = await cluster.post(SECOND)
        assert answer.turn["path"] == "read_back"


async def test_a_d_that_is_lost_means_p_and_d_again() -> None:
    async with running(decode=2, choice=ALWAYS) as cluster:
        await cluster.post(FIRST)
        one, other = cluster.decodes
        one.faults.reset = True
        answer = await cluster.post(SECOND)
        assert (answer.status, answer.turn["path"]) == (200, "read_back")
        assert len(other.generated) == 1
        await cluster.proxy.leases.settle(5)
        assert len(one.released) == 1
        assert len(one.at(control.ACQUIRE)) == 2


async def test_each_attempt_of_a_direct_turn_gives_its_own_lease_back() -> None:
    async with running(choice=ALWAYS) as cluster:
        await cluster.post(FIRST)
        # The kept-alive connection is lost, and the fresh one in its place.
        cluster.decode.faults.reset, cluster.decode.faults.times = True, 2
        answer = await cluster.post({**SECOND, "stream": True})
        assert (answer.status, answer.turn["path"]) == (200, "direct")
        await cluster.proxy.leases.settle(5)
        assert len(cluster.decode.at(control.ACQUIRE)) == 2
        assert len(cluster.decode.released) == 2
        assert not cluster.decode.leases


async def test_a_d_that_is_gone_after_the_lease() -> None:
    """It answers the question and is gone before the turn: P and another D serve it, from the beginning."""
    async with running(decode=2, choice=ALWAYS) as cluster:
        await cluster.post(FIRST)
        one, other = cluster.decodes
        one.gone_after_acquire = True
        answer = await cluster.post(SECOND)
        assert (answer.status, len(other.generated)) == (200, 1)
