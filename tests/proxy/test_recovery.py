"""Engines that fail for a while, or are not what they were said to be: left out, said, and back by themselves.

Each test names its row of the table of faults.
"""

import asyncio
import logging

import pytest

from neuron_pd.proxy.breaker import State
from neuron_pd.proxy.settings import Conversations, Watch
from tests.proxy.conftest import Cluster, chat, running, until

LONG = "please tell me everything about the sea and the ships on it"
SELDOM = Watch(interval=60.0)  # what recovers does so without a health check


def problems(cluster: Cluster) -> list[str]:
    return [f"{one.what}; {one.change}" for engine in cluster.proxy.engines.every for one in engine.problems]


@pytest.mark.slow
async def test_a_burst_of_failures_of_p_under_load() -> None:
    """Row: after a burst of failures, the breaker half-opens and recovers without a restart."""
    async with running(watch=SELDOM) as cluster:
        engine = cluster.proxy.engines.prefill[0]
        cluster.prefill.faults.reset = True
        statuses = [answer.status for answer in await asyncio.gather(*(cluster.post(chat(str(n))) for n in range(20)))]
        assert set(statuses) == {503}
        assert engine.breaker.state is State.OPEN
        assert (await cluster.get("/ready")).status == 503
        cluster.prefill.faults.reset = False
        await until(lambda: engine.breaker.state is State.HALF_OPEN)
        # One of all that come is let through, and its success lets all others in.
        engine.breaker.cooldown = 60.0  # no second trial, however slow this machine is
        cluster.prefill.faults.head_delay = 0.2
        sent = len(cluster.prefill.generated)
        answers = await asyncio.gather(*(cluster.post(chat(f"again {n}")) for n in range(10)))
        assert len(cluster.prefill.generated) - sent == 1
        assert sorted(answer.status for answer in answers) == [200] + [503] * 9
        assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status == 503)
        assert (await cluster.get("/ready")).status == 200
        assert {(await cluster.post(chat(f"and again {n}"))).status for n in range(3)} == {200}


@pytest.mark.slow
async def test_a_burst_of_failures_of_d_and_each_failed_trial_waits_longer() -> None:
    """Row: after a burst of failures, the breaker half-opens and recovers without a restart."""
    async with running(watch=SELDOM) as cluster:
        engine = cluster.proxy.engines.decode[0]
        cluster.decode.faults.reset = True
        for number in range(3):
            assert (await cluster.post(chat(f"{number}"))).status == 503
        assert engine.breaker.state is State.OPEN
        await until(lambda: engine.breaker.state is State.HALF_OPEN)
        assert (await cluster.post(chat("a trial"))).status == 503
        assert (engine.breaker.state, engine.breaker.cooldown) == (State.OPEN, 2.0)
        cluster.decode.faults.reset = False
        await until(lambda: engine.breaker.state is State.HALF_OPEN)
        assert (await cluster.post(chat("another trial"))).status == 200
        assert (engine.breaker.state, engine.breaker.cooldown) == (State.CLOSED, 1.0)
        page = (await cluster.get("/metrics")).raw.decode()
        assert f'breaker_state{{engine="{cluster.decode.url}",role="decode",state="closed"}} 1.0' in page


async def test_a_p_that_answers_500_to_what_another_does_is_left_alone() -> None:
    async with running(prefill=2, watch=SELDOM) as cluster:
        bad, good = cluster.prefills
        bad.faults.status = 500
        for number in range(12):
            assert (await cluster.post(chat(f"turn {number}"))).status == 200
        assert cluster.proxy.engines.prefill[0].breaker.state is not State.CLOSED
        assert len(bad.generated) < 10  # three, and a trial now and then
        assert len(good.generated) == 12


async def test_a_request_that_no_p_can_do_is_no_engine_s_fault() -> None:
    async with running(prefill=2, watch=SELDOM) as cluster:
        for engine in cluster.prefills:
            engine.faults.status = 500
        for _ in range(5):
            assert (await cluster.post(chat("poison"))).status == 500
        assert {engine.breaker.state for engine in cluster.proxy.engines.prefill} == {State.CLOSED}


async def test_nothing_ready() -> None:
    """Row: nothing ready: 503, structured, retryable; /ready means a P and a D, /health that the process lives."""
    async with running() as cluster:
        cluster.proxy.roster.drain(cluster.proxy.engines.decode[0])
        assert (await cluster.get("/health")).status == 200
        ready = await cluster.get("/ready")
        assert (ready.status, ready.json["ready"]) == (503, False)
        for body in (chat(LONG), chat(LONG, stream=True), chat(LONG, n=2)):
            answer = await cluster.post(body)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            error = answer.json["error"]
            assert (error["type"], error["code"]) == ("server_error", "no_engine_ready")
        assert not cluster.decode.generated


async def test_a_p_without_transfer_params_is_said() -> None:
    """Row: a backend that is not what it was said to be (no kv_transfer_params from P)."""
    async with running() as cluster:
        cluster.prefill.faults.no_params = True
        assert (await cluster.post(chat(LONG))).status == 200
        await cluster.proxy.probe.once()
        (problem,) = problems(cluster)
        assert "carry no kv_transfer_params" in problem
        assert "kv_role kv_producer" in problem
        cluster.prefill.faults.no_params = False
        assert (await cluster.post(chat(LONG))).status == 200
        await cluster.proxy.probe.once()
        assert problems(cluster) == []


@pytest.mark.parametrize(("ttl", "found"), [(3600.0, True), (400.0, False)])
async def test_pinned_blocks_that_go_before_the_conversation(ttl: float, found: bool) -> None:
    """Row: a backend that is not what it was said to be: blocks are kept for less time than conversations."""
    async with running(conversations=Conversations(ttl=ttl)) as cluster:
        for engine in (cluster.prefill, cluster.decode):
            assert engine.info is not None
            engine.info["retention"] = "pin"
        await cluster.proxy.probe.once()
        assert ["--conversation-ttl" in problem for problem in problems(cluster)] == ([True] if found else [])


async def test_it_is_said_at_start_up(caplog: pytest.LogCaptureFixture) -> None:
    """Row: a backend that is not what it was said to be: said at start-up and in /ready, with the setting to change."""
    caplog.set_level(logging.INFO, "neuron_pd.proxy")
    async with running() as cluster:
        assert f"prefill {cluster.prefill.url}: ready" in caplog.text
        assert cluster.decode.info is not None
        cluster.decode.info["bidirectional"] = False
        await cluster.proxy.probe.once()
        await cluster.proxy.probe.once()
        lines = [record for record in caplog.records if "bidirectional_kv_xfer" in record.getMessage()]
        assert [record.levelname for record in lines] == ["WARNING"]
        assert "set bidirectional_kv_xfer to true" in lines[0].getMessage()
