"""Which engines serve a turn: P by load and by what it may hold, D by the conversation while it can have it."""

import asyncio

import pytest

from neuron_pd.core import control
from neuron_pd.core.transfer import FINGERPRINT
from neuron_pd.proxy.engines import Balance
from neuron_pd.proxy.settings import Choice
from tests.proxy.conftest import CHAT, Cluster, chat, running, until

LONG = "please tell me everything about the sea and the ships on it"
SECOND = (LONG, "the reply", "go on")
RANK = "x-data-parallel-rank"


def offered(cluster: Cluster, index: int = -1) -> object:
    """What P was offered of a history, in the order of requests over all P."""
    requests = [request for engine in cluster.prefills for request in engine.generated]
    return requests[index].body["kv_transfer_params"].get(FINGERPRINT)


# ---- P


async def test_p_by_tokens_in_flight_not_requests() -> None:
    async with running(prefill=2) as cluster:
        one, other = cluster.prefills
        one.faults.hang = True
        long = asyncio.create_task(cluster.post(chat("x" * 4000)))
        await until(lambda: one.active == 1)
        waiting = []
        for turn in range(3):
            other.faults.head_delay = 0.2
            waiting.append(asyncio.create_task(cluster.post(chat(f"short {turn}"))))
            await until(lambda turn=turn: other.active == turn + 1)
        assert cluster.proxy.engines.prefill[0].load > cluster.proxy.engines.prefill[1].load
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 3
        long.cancel()
        await until(lambda: cluster.proxy.engines.prefill[0].load == 0)


async def test_a_conversation_goes_back_to_the_p_that_may_hold_it() -> None:
    async with running(prefill=3) as cluster:
        for turn in range(3):
            await cluster.post(chat(f"another one {turn} " * 20))
        await cluster.post(chat(LONG, conversation_id="c"))
        first = [engine for engine in cluster.prefills if len(engine.generated) == 2]
        await cluster.post(chat(*SECOND, conversation_id="c"))
        assert [engine for engine in cluster.prefills if len(engine.generated) == 3] == first


async def test_but_not_to_one_that_keeps_no_prefixes() -> None:
    async with running(prefill=2) as cluster:
        for engine in cluster.prefills:
            assert engine.info is not None
            engine.info["prefix_caching"] = False
        await cluster.proxy.probe.once()
        await cluster.post(chat(LONG, conversation_id="c"))
        await cluster.post(chat(*SECOND, conversation_id="c"))
        assert [len(engine.generated) for engine in cluster.prefills] == [1, 1]


async def test_but_not_where_its_queue_is_longer_than_the_prefix() -> None:
    async with running(prefill=2) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        (first,) = [engine for engine in cluster.prefills if engine.generated]
        index = cluster.prefills.index(first)
        cluster.proxy.engines.prefill[index].begin(10_000)
        await cluster.post(chat(*SECOND, conversation_id="c"))
        assert len(first.generated) == 1
        assert len(cluster.prefills[1 - index].generated) == 1
        cluster.proxy.engines.prefill[index].end(10_000)


async def test_what_is_read_back_is_not_load() -> None:
    async with running() as cluster:
        await cluster.post(chat("x" * 4000, conversation_id="c"))
        cluster.prefill.faults.hang = True
        task = asyncio.create_task(cluster.post(chat("x" * 4000, "the reply", "go on", conversation_id="c")))
        await until(lambda: cluster.prefill.active == 1)
        assert 1 <= cluster.proxy.engines.prefill[0].load < 500
        task.cancel()


# ---- D moves, and its KV with it


async def moves(cluster: Cluster) -> None:
    """The second turn decodes elsewhere, from the first D's KV."""
    one, other = cluster.decodes
    answer = await cluster.post(chat(*SECOND, conversation_id="c"))
    assert answer.status == 200
    assert answer.turn["path"] == "read_back"
    assert len(one.at(control.ACQUIRE)) == 1
    assert (len(one.generated), len(other.generated)) == (1, 1)
    assert offered(cluster) == {"text": one.records[next(iter(one.records))]}
    params = other.generated[0].body["kv_transfer_params"]
    assert params["remote_engine_id"] == "prefill-engine"
    assert not other.at(control.ACQUIRE)
    assert cluster.proxy.metrics.moved.get() == 1
    # From then on the new one has it.
    third = await cluster.post(chat(*SECOND, "the reply", "and then", conversation_id="c"))
    assert (third.turn["path"], len(other.generated)) == ("read_back", 2)
    assert len(other.at(control.ACQUIRE)) == 1


async def test_a_draining_d() -> None:
    async with running(decode=2) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        cluster.proxy.roster.drain(cluster.proxy.engines.decode[0])
        await moves(cluster)


async def test_a_leaving_d() -> None:
    async with running(decode=2) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        cluster.proxy.roster.leave(cluster.proxy.engines.decode[0])
        await moves(cluster)


async def test_an_overloaded_d() -> None:
    async with running(decode=2, choice=Choice(Balance(2, 1.5))) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        engine = cluster.proxy.engines.decode[0]
        for _ in range(3):
            engine.begin(1)
        await moves(cluster)
        for _ in range(3):
            engine.end(1)


async def test_a_little_more_load_moves_nothing() -> None:
    async with running(decode=2, choice=Choice(Balance(2, 1.5))) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        engine = cluster.proxy.engines.decode[0]
        for _ in range(2):
            engine.begin(1)
        await cluster.post(chat(*SECOND, conversation_id="c"))
        assert [len(one.generated) for one in cluster.decodes] == [2, 0]
        for _ in range(2):
            engine.end(1)


async def test_a_d_that_is_down_takes_its_kv_with_it() -> None:
    async with running(decode=2) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        await cluster.decodes[0].stop()
        await cluster.proxy.probe.once()
        answer = await cluster.post(chat(*SECOND, conversation_id="c"))
        assert (answer.status, answer.turn["path"]) == (200, "recompute")
        assert cluster.proxy.metrics.reuse.get("miss", "decode_gone") == 1
        assert len(cluster.decodes[1].generated) == 1


@pytest.mark.parametrize("faulty", ["refuses", "resets"])
async def test_a_lease_of_the_old_d_is_not_lost_when_the_new_one_fails(faulty: str) -> None:
    """D was asked to move to one that fails: the turn is served all the same, and every lease is read or given back."""
    async with running(decode=3, choice=Choice(Balance(0, 1.0))) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        old, second, third = cluster.decodes
        cluster.proxy.roster.drain(cluster.proxy.engines.decode[0])
        if faulty == "refuses":
            await second.stop()
        else:
            second.faults.reset = True
        answer = await cluster.post(chat(*SECOND, conversation_id="c"))
        assert answer.status == 200
        assert len(third.generated) == 1
        await cluster.proxy.leases.settle(5)
        leases = len(old.at(control.ACQUIRE))
        read = sum(1 for request in cluster.prefill.generated if FINGERPRINT in request.body["kv_transfer_params"])
        assert leases == read + len(old.released)


# ---- data-parallel ranks


async def test_legs_go_to_the_ranks_that_hold_the_conversation() -> None:
    async with running() as cluster:
        assert cluster.decode.info is not None
        assert cluster.prefill.info is not None
        cluster.decode.info["engine_ids"] = ["decode-engine_dp0", "decode-engine"]
        cluster.prefill.info["engine_ids"] = ["a", "b", "prefill-engine"]
        await cluster.proxy.probe.once()
        await cluster.post(chat(LONG, conversation_id="c"), **{RANK: "7"})
        assert RANK not in cluster.prefill.generated[0].headers
        assert RANK not in cluster.decode.generated[0].headers
        await cluster.post(chat(*SECOND, conversation_id="c"))
        assert cluster.prefill.generated[1].headers[RANK] == "2"
        assert cluster.decode.generated[1].headers[RANK] == "1"


async def test_one_rank_needs_no_header() -> None:
    async with running() as cluster:
        for body in (chat(LONG, conversation_id="c"), chat(*SECOND, conversation_id="c")):
            await cluster.post(body)
        requests = [*cluster.prefill.generated, *cluster.decode.generated]
        assert len(requests) == 4
        assert not any(RANK in request.headers for request in requests)


async def test_streams_hold_load_and_give_it_back(cluster: Cluster) -> None:
    cluster.decode.faults.stall_after = 1
    async with cluster.session.post(cluster.url + CHAT, json=chat(LONG, stream=True)) as response:
        assert await response.content.readany()
        assert cluster.proxy.engines.decode[0].load == 1
    await until(lambda: cluster.proxy.engines.decode[0].load == 0)
