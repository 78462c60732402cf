"""Reuse over turns: who is recognised, what is offered, and what happens to leases."""

import asyncio
from typing import Any

import pytest

from neuron_pd.core import control
from neuron_pd.core.transfer import FINGERPRINT, HANDLE
from neuron_pd.proxy.settings import Conversations, Phases
from tests.proxy.conftest import Cluster, chat, running, until

LONG = "please tell me everything about the sea and the ships on it"
SECOND = (LONG, "the reply", "go on")


async def drained(cluster: Cluster) -> None:
    """Releases under way have arrived."""
    await cluster.proxy.leases.settle(5)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "headers"),
    [({"conversation_id": "c1"}, {}), ({}, {"X_Session_ID": "s1"}), ({}, {"session-id": "s1"}), ({}, {})],
    ids=["body", "header", "codex", "transcript"],
)
async def test_second_turn_reads_back(
    cluster: Cluster, stream: bool, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    first = await cluster.post(chat(LONG, stream=stream, **fields), **headers)
    assert first.turn["path"] == "recompute"
    second = await cluster.post(chat(*SECOND, stream=stream, **fields), **headers)
    assert second.turn["path"] == "read_back"
    assert int(second.turn["reused"]) == int(second.turn["offered"]) == len(LONG) + 17 + len("the reply")
    third = await cluster.post(chat(*SECOND, "the reply", "and", stream=stream, **fields), **headers)
    assert int(third.turn["reused"]) > int(second.turn["reused"])
    await drained(cluster)
    assert not cluster.decode.released
    assert cluster.proxy.metrics.reuse.get("hit", "reused") == 2


async def test_what_p_is_offered(cluster: Cluster) -> None:
    await cluster.post(chat(LONG))
    await cluster.post(chat(*SECOND))
    handle = cluster.decode.generated[0].body["kv_transfer_params"][HANDLE]
    assert [request.body for request in cluster.decode.at(control.ACQUIRE)] == [{"handle": handle}]
    params = cluster.prefill.generated[1].body["kv_transfer_params"]
    assert (params["do_remote_decode"], params["do_remote_prefill"]) == (True, False)
    assert params["remote_engine_id"] == "decode-engine"
    assert params[FINGERPRINT]["text"].startswith(f"<user>{LONG}")


async def test_completions_transcript(cluster: Cluster) -> None:
    prompt = LONG * 10
    await cluster.post({"model": "fake", "prompt": prompt}, "/v1/completions")
    second = await cluster.post({"model": "fake", "prompt": prompt + "the reply" + LONG * 3}, "/v1/completions")
    assert int(second.turn["reused"]) == len(prompt + "the reply")


async def test_tool_calls_in_the_transcript(cluster: Cluster) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"q": "sea"}'}}
    cluster.decode.reply, cluster.decode.tool_calls = "", [call]
    await cluster.post(chat(LONG, stream=True))
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = chat(LONG)
    body["messages"] += [assistant, {"role": "tool", "tool_call_id": "call_1", "content": "blue"}]
    assert (await cluster.post(body)).turn["path"] == "read_back"


async def test_edited_history_reuses_exactly_the_common_prefix(cluster: Cluster) -> None:
    await cluster.post(chat(LONG, conversation_id="c"))
    tail = await cluster.post(chat(LONG[:-5] + "EDITED", "the reply", "go on", conversation_id="c"))
    assert int(tail.turn["verified"]) == int(tail.turn["reused"]) == len("<user>") + len(LONG) - 5
    head = await cluster.post(chat("EDITED" + LONG, "the reply", "go on", conversation_id="c"))
    assert (head.turn["path"], head.turn["reason"], head.turn["reused"]) == ("recompute", "no_common_prefix", "0")
    await drained(cluster)
    assert len(cluster.decode.released) == 1
    assert cluster.proxy.metrics.reuse.get("miss", "no_common_prefix") == 1


async def test_two_branches_of_one_conversation(cluster: Cluster) -> None:
    await cluster.post(chat(LONG))
    for branch in ("left", "right"):
        answer = await cluster.post(chat(LONG, "the reply", branch))
        assert int(answer.turn["reused"]) == len(LONG) + 17 + len("the reply")


async def test_two_turns_at_once_have_a_lease_each(cluster: Cluster) -> None:
    await cluster.post(chat(LONG, conversation_id="c"))
    answers = await asyncio.gather(*(cluster.post(chat(*SECOND, conversation_id="c")) for _ in range(5)))
    assert [answer.turn["path"] for answer in answers] == ["read_back"] * 5
    offered = {request.body["kv_transfer_params"]["remote_request_id"] for request in cluster.prefill.generated[1:]}
    assert len(offered) == 5


async def test_reuse_declined_by_the_client(cluster: Cluster) -> None:
    await cluster.post(chat(LONG, conversation_id="c"))
    declined = await cluster.post(chat(*SECOND, conversation_id="c"), X_Neuron_PD_Reuse="off")
    assert declined.turn["path"] == "recompute"
    assert not cluster.decode.at(control.ACQUIRE)
    assert "x-neuron-pd-reuse" not in cluster.prefill.generated[1].headers
    assert HANDLE in cluster.decode.generated[1].body["kv_transfer_params"]
    assert cluster.proxy.metrics.reuse.get("miss", "off") == 1
    again = await cluster.post(chat(*SECOND, "the reply", "x", conversation_id="c"))
    assert int(again.turn["reused"]) > len(LONG) + 30


@pytest.mark.parametrize("second", [{"authorization": "Bearer two"}, {}])
async def test_another_tenant_is_not_recognised(cluster: Cluster, second: dict[str, str]) -> None:
    await cluster.post(chat(LONG, conversation_id="c"), authorization="Bearer one")
    await cluster.post(chat(*SECOND, conversation_id="c"), **second)
    assert not cluster.decode.at(control.ACQUIRE)
    await cluster.post(chat(*SECOND, conversation_id="c"), authorization="Bearer one")
    assert len(cluster.decode.at(control.ACQUIRE)) == 1


async def test_another_adapter_or_salt_is_not_recognised(cluster: Cluster) -> None:
    await cluster.post(chat(LONG, conversation_id="c"))
    await cluster.post({**chat(*SECOND, conversation_id="c"), "model": "adapter"})
    await cluster.post(chat(*SECOND, conversation_id="c", cache_salt="s"))
    assert not cluster.decode.at(control.ACQUIRE)


async def test_d_restarted_and_forgot(cluster: Cluster) -> None:
    await cluster.post(chat(LONG, conversation_id="c"))
    cluster.decode.records.clear()
    answer = await cluster.post(chat(*SECOND, conversation_id="c"))
    assert (answer.status, answer.turn["path"]) == (200, "recompute")
    assert cluster.proxy.metrics.reuse.get("miss", "unknown_handle") == 1


@pytest.mark.parametrize("trouble", ["slow", "error", "nonsense"])
async def test_acquire_that_fails_costs_reuse_only(trouble: str) -> None:
    async with running(phases=Phases(acquire=0.2)) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        if trouble == "slow":
            cluster.decode.acquire_delay = 60
        else:
            cluster.decode.acquire_status = 500 if trouble == "error" else 204
        answer = await cluster.post(chat(*SECOND, conversation_id="c"))
        assert (answer.status, answer.turn["path"]) == (200, "recompute")
        assert cluster.proxy.metrics.reuse.get("miss", "acquire_failed") == 1


async def test_ttl() -> None:
    async with running(conversations=Conversations(ttl=0.0)) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        await cluster.post(chat(*SECOND, conversation_id="c"))
        assert not cluster.decode.at(control.ACQUIRE)


async def test_d_is_sticky_and_moves_when_it_is_down() -> None:
    async with running(decode=3) as cluster:
        for name in "abcdef":
            await cluster.post(chat(LONG, conversation_id=name))
        assert [len(engine.generated) for engine in cluster.decodes] == [2, 2, 2]
        for name in "abcdef":
            answer = await cluster.post(chat(*SECOND, conversation_id=name))
            assert answer.turn["path"] == "read_back"
        assert [len(engine.generated) for engine in cluster.decodes] == [4, 4, 4]
        await cluster.decodes[0].stop()
        answers = [await cluster.post(chat(*SECOND, "the reply", "x", conversation_id=name)) for name in "abcdef"]
        assert [answer.status for answer in answers] == [200] * 6
        assert sum(answer.turn["path"] == "read_back" for answer in answers) == 4


async def test_a_finish_makes_the_turn_even_when_the_client_closes_at_once(cluster: Cluster) -> None:
    """Some clients hang up on `[DONE]`."""
    finish = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    cluster.decode.events = [finish, *[b": wait\n\n"] * 200]
    async with cluster.session.post(f"{cluster.url}/v1/chat/completions", json=chat(LONG, stream=True)) as response:
        assert b"finish_reason" in await response.content.readany()
    await until(lambda: cluster.decode.cancelled)
    assert len(cluster.proxy.store) == 2


async def test_a_reply_without_finish_makes_no_turn(cluster: Cluster) -> None:
    cluster.decode.events = [b'data: {"error":{"message":"no"}}\n\n', b"data: [DONE]\n\n"]
    await cluster.post(chat(LONG, stream=True, conversation_id="c"))
    cluster.decode.events = None
    cluster.decode.faults.status = 400
    await cluster.post(chat(LONG, stream=True, conversation_id="c"))
    assert len(cluster.proxy.store) == 0


async def test_end_of_session_frees_the_entry(cluster: Cluster) -> None:
    await cluster.post(chat(LONG), X_Dynamo_Session_ID="s")
    assert len(cluster.proxy.store) == 1
    last = await cluster.post(chat(*SECOND), X_Dynamo_Session_ID="s-Final")
    assert last.turn["path"] == "read_back"
    assert len(cluster.proxy.store) == 0


@pytest.mark.parametrize("which", ["prefill", "decode"])
async def test_no_lease_is_given_to_an_engine_that_cannot_verify(which: str) -> None:
    async with running() as cluster:
        engine = cluster.prefill if which == "prefill" else cluster.decode
        assert engine.info is not None
        await cluster.post(chat(LONG, conversation_id="c"))
        engine.info = {**engine.info, "bidirectional": False}
        await cluster.proxy.probe.once()
        answer = await cluster.post(chat(*SECOND, conversation_id="c"))
        assert answer.status == 200
        assert not cluster.decode.at(control.ACQUIRE)
        assert cluster.proxy.metrics.reuse.get("miss", f"{which}_without_reuse") == 1
