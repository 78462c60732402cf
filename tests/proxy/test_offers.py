"""Engines whose answers name the blocks that D keeps, for one use: our pin mode, and vLLM's own connector.

Rows of router-cases.md, "Reuse", and "block ids, internal addresses never reach a client".
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from neuron_pd.core import control
from neuron_pd.core.transfer import FINGERPRINT, HANDLE
from neuron_pd.proxy.apis import GENERATE
from neuron_pd.proxy.bodies import Generate, dump
from neuron_pd.proxy.offers import tokenize_body
from neuron_pd.proxy.settings import Conversations
from tests.fakes.engine import FakeEngine
from tests.proxy.conftest import CHAT, Answer, Cluster, chat, running, until

LONG = "please tell me everything about the sea and the ships on it " * 4
REPLY = "the reply"
SECOND = (LONG, REPLY, "go on with the ships and the sea")
COMPLETIONS = "/v1/completions"


@asynccontextmanager
async def pinning(decode: int = 1, **settings: Any) -> AsyncIterator[Cluster]:
    """Our engines in pin mode."""
    async with running(decode=decode, **settings) as cluster:
        for engine in cluster.decodes:
            assert engine.info is not None
            engine.pins, engine.info["retention"] = True, "pin"
        await cluster.proxy.probe.once()
        yield cluster


@asynccontextmanager
async def upstream(**settings: Any) -> AsyncIterator[Cluster]:
    """vLLM's own connector: no control path, nothing verified, blocks kept after each turn."""
    async with running(**settings) as cluster:
        cluster.prefill.info = cluster.decode.info = None
        cluster.decode.pins = True
        await cluster.proxy.probe.once()
        yield cluster


def offered(cluster: Cluster) -> list[str]:
    """The offers that P was given, in order."""
    legs = [request.body["kv_transfer_params"] for request in cluster.prefill.generated]
    return [params["remote_request_id"] for params in legs if "remote_request_id" in params]


async def closed(cluster: Cluster, turns: int) -> None:
    """So many turns are over for the proxy too: with vLLM's own connector it still asks D for the prompt's tokens."""
    await until(lambda: sum(cluster.proxy.metrics.turns.values.values()) == turns)


def clean(answer: Answer) -> bool:
    return not any(word in answer.raw for word in (b"pin-", b"remote_", HANDLE.encode(), FINGERPRINT.encode()))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"conversation_id": "c"}, {}], ids=["named", "transcript"])
async def test_pin_mode(stream: bool, fields: dict[str, Any]) -> None:
    async with pinning() as cluster:
        contents = [LONG]
        for turn in range(3):
            answer = await cluster.post(chat(*contents, stream=stream, **fields))
            assert answer.turn["path"] == ("read_back" if turn else "recompute")
            assert clean(answer)
            contents += [REPLY, f"go on {turn}"]
        assert len(set(offered(cluster))) == 2
        assert cluster.decode.renewed == offered(cluster)
        assert not cluster.decode.at(control.ACQUIRE)
        await cluster.proxy.leases.settle(5)
        assert not cluster.decode.released


async def test_an_offer_is_used_by_one_of_two_turns_and_the_other_asks_for_a_lease() -> None:
    async with pinning() as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        cluster.prefill.faults.head_delay = 0.5  # none ends before the last has begun
        answers = await asyncio.gather(*(cluster.post(chat(*SECOND, conversation_id="c")) for _ in range(4)))
        assert [answer.turn["path"] for answer in answers] == ["read_back"] * 4
        ids = offered(cluster)
        assert len(set(ids)) == 4
        assert sum(name.startswith("pin-") for name in ids) == 1
        assert len(cluster.decode.at(control.ACQUIRE)) == 3


async def test_a_pin_that_has_ended_is_not_handed_out() -> None:
    async with pinning() as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        cluster.decode.leases.clear()
        cluster.decode.records.clear()
        answer = await cluster.post(chat(*SECOND, conversation_id="c"))
        assert (answer.status, answer.turn["reason"]) == (200, "no_lease")
        assert cluster.proxy.metrics.renewals.get("unknown_handle") == 1
        assert not offered(cluster)


async def test_what_p_did_not_read_is_given_back() -> None:
    async with pinning() as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        (pin,) = cluster.decode.leases
        answer = await cluster.post(chat("another " + LONG, REPLY, "go on", conversation_id="c"))
        assert answer.turn["reason"] == "no_common_prefix"
        await cluster.proxy.leases.settle(5)
        assert cluster.decode.released == [pin]


async def test_a_turn_that_declines_reuse_lets_go_of_the_one_before() -> None:
    async with pinning() as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        (pin,) = cluster.decode.leases
        await cluster.post(chat(*SECOND, conversation_id="c"), X_Neuron_PD_Reuse="off")
        await cluster.proxy.leases.settle(5)
        assert cluster.decode.released == [pin]


async def test_the_end_of_a_session_lets_go_of_everything() -> None:
    async with pinning() as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        await cluster.post(chat(*SECOND, conversation_id="c"), X_Neuron_PD_Session="end")
        await cluster.proxy.leases.settle(5)
        (last,) = [name for name in cluster.decode.leases if name not in offered(cluster)] or [None]
        assert last is None
        assert len(cluster.decode.released) == 2


async def test_another_conversations_offer_is_not_taken_for_a_hint() -> None:
    async with pinning() as cluster:
        await cluster.post(chat(LONG + "one", prompt_cache_key="k"))
        other = await cluster.post(chat(LONG + "two", prompt_cache_key="k"))
        assert other.turn["path"] == "read_back"
        assert not offered(cluster)[0].startswith("pin-")
        await cluster.post(chat(LONG + "one", REPLY, "go on", prompt_cache_key="k"))
        assert offered(cluster)[1].startswith("pin-")


@pytest.mark.parametrize("retention", ["lease", "pin"])
async def test_a_lease_is_renewed_while_p_is_awaited(retention: str) -> None:
    async with pinning() if retention == "pin" else running() as cluster:
        assert cluster.decode.info is not None
        cluster.decode.info["read_lease_seconds"] = cluster.decode.info["decoder_kv_blocks_ttl"] = 0.3
        await cluster.proxy.probe.once()
        await cluster.post(chat(LONG, conversation_id="c"))
        before = len(cluster.decode.renewed)
        cluster.prefill.faults.hang, cluster.prefill.faults.times = True, 1
        waiting = asyncio.create_task(cluster.post(chat(*SECOND, conversation_id="c")))
        await until(lambda: len(cluster.decode.renewed) >= before + 3)
        waiting.cancel()
        await until(lambda: cluster.prefill.cancelled)
        await asyncio.sleep(0.25)
        after = len(cluster.decode.renewed)
        await asyncio.sleep(0.25)
        assert len(cluster.decode.renewed) <= after + 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_vllms_own_connector(path: str, stream: bool) -> None:
    """P verifies nothing, so it is offered what both prompts share by their tokens, in whole blocks; and only once."""
    async with upstream() as cluster:
        texts = [LONG, LONG + REPLY + "more " * 9, LONG + REPLY + "more " * 9 + REPLY + "again " * 9]
        for turn, text in enumerate(texts):
            body = chat(*SECOND[: 2 * turn + 1]) if path == CHAT and turn < 2 else {"model": "fake", "prompt": text}
            if path == CHAT and turn == 2:
                body = chat(*SECOND, REPLY, "and on")
            answer = await cluster.post({**body, "stream": stream, "conversation_id": "c"}, path)
            assert answer.status == 200
            await closed(cluster, turn + 1)
            assert clean(answer)
        assert len(set(offered(cluster))) == 2
        first, second = (request.body["kv_transfer_params"] for request in cluster.prefill.generated[1:])
        prompt = LONG if path == COMPLETIONS else f"<user>{LONG}<assistant>"
        assert first["remote_num_tokens"] == len(prompt) // 16 * 16
        assert first["remote_block_ids"] == [list(range(len(prompt) // 16))]
        assert second["remote_num_tokens"] > first["remote_num_tokens"]
        assert FINGERPRINT not in first
        assert cluster.proxy.metrics.reuse.get("offered", "no_report") == 2
        assert not cluster.decode.released


async def test_vllms_own_connector_and_an_edited_history() -> None:
    """Never a wrong token: the common prefix, cut to whole blocks, or nothing."""
    async with upstream() as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        await closed(cluster, 1)
        await cluster.post(chat(LONG[:100] + "EDITED" + LONG[100:], REPLY, "x", conversation_id="c"))
        await closed(cluster, 2)
        params = cluster.prefill.generated[1].body["kv_transfer_params"]
        assert params["remote_num_tokens"] == (len("<user>") + 100) // 16 * 16
        await cluster.post(chat("EDITED" + LONG, conversation_id="c"))
        assert "remote_block_ids" not in cluster.prefill.generated[2].body["kv_transfer_params"]
        await closed(cluster, 3)
        assert cluster.proxy.metrics.reuse.get("miss", "mismatch") == 1


async def test_vllms_own_connector_and_two_turns_at_once() -> None:
    async with upstream() as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        await closed(cluster, 1)
        answers = await asyncio.gather(*(cluster.post(chat(*SECOND, conversation_id="c")) for _ in range(4)))
        assert [answer.status for answer in answers] == [200] * 4
        await closed(cluster, 5)
        assert len(set(offered(cluster))) == len(offered(cluster)) >= 1
        assert cluster.proxy.metrics.reuse.get("miss", "offer_gone") == 4 - len(offered(cluster))


async def test_an_offer_is_not_used_when_it_is_about_to_expire() -> None:
    async with upstream(conversations=Conversations(kept=0.2)) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        await closed(cluster, 1)
        await asyncio.sleep(0.2)
        await cluster.post(chat(*SECOND, conversation_id="c"))
        assert not offered(cluster)


@pytest.mark.parametrize("why", ["off", "p_of_ours", "not_offered"])
async def test_no_offer_goes_where_it_cannot_be_used(why: str) -> None:
    async with upstream(conversations=Conversations(kept=0.0 if why == "off" else 480.0)) as cluster:
        if why == "p_of_ours":
            cluster.prefill.info = FakeEngine("prefill").info
            await cluster.proxy.probe.once()
        cluster.decode.pins = cluster.decode.leak = why != "not_offered"
        for turn, contents in enumerate(((LONG,), SECOND)):
            assert (await cluster.post(chat(*contents, conversation_id="c"))).status == 200
            await closed(cluster, turn + 1)
        assert not offered(cluster)


@pytest.mark.parametrize(
    "body",
    [
        {**chat("x"), "documents": [{"text": "x"}]},
        {**chat("x"), "tool_choice": "none"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": "x"},
    ],
)
def test_prompts_that_tokenize_may_render_otherwise_are_not_verified(body: dict[str, Any]) -> None:
    assert tokenize_body(Generate(GENERATE[CHAT], dump(body))) is None


def test_prompts_as_tokenize_takes_them() -> None:
    body = {**chat("x"), "tools": [{"a": 1}], "temperature": 0, "chat_template_kwargs": {"b": 1}}
    kept = {**chat("x"), "tools": [{"a": 1}], "chat_template_kwargs": {"b": 1}}
    assert tokenize_body(Generate(GENERATE[CHAT], dump(body))) == kept
    assert tokenize_body(Generate(GENERATE[COMPLETIONS], b'{"model":"m","prompt":"x","seed":1}')) == {
        "model": "m", "prompt": "x",
    }  # fmt: skip
    assert tokenize_body(Generate(GENERATE[COMPLETIONS], b'{"prompt":[1,2]}')) is None
    assert tokenize_body(Generate(GENERATE["/v1/responses"], b'{"input":"x"}')) is None
