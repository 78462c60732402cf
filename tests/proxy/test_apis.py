"""Every API that generates goes through P and D, and every client's second turn is recognised.

Rows of router-cases.md, "Reuse": `/v1/messages`, `/v1/responses`; "What the client gets": answers are D's own.
"""

from typing import Any

import pytest

from neuron_pd.core import control
from neuron_pd.core.transfer import HANDLE
from tests.fakes.apis import COMPLETIONS, GENERATE, MESSAGES, RESPONSES
from tests.proxy.conftest import Answer, Cluster, chat, running

LONG = "please tell me everything about the sea and the ships on it " * 6
REPLY = "the reply"


def first(path: str, **fields: Any) -> dict[str, Any]:
    """A first turn."""
    if path == COMPLETIONS:
        return {"model": "fake", "prompt": LONG, **fields}
    if path == RESPONSES:
        return {"model": "fake", "instructions": "be brief", "input": LONG, **fields}
    extra = {"max_tokens": 100, "system": "be brief"} if path == MESSAGES else {}
    return {**chat(LONG), **extra, **fields}


def second(path: str, reply: Any = REPLY, **fields: Any) -> dict[str, Any]:
    """The turn that follows, as a client writes it that resends what it got."""
    if path == COMPLETIONS:
        return {"model": "fake", "prompt": LONG + reply + LONG, **fields}
    if path == RESPONSES:
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": reply}]}
        items = [{"role": "user", "content": LONG}, said, {"role": "user", "content": "go on"}]
        return {**first(path), "input": items, **fields}
    body = {**first(path), **chat(LONG, reply, "go on"), **fields}
    if path == MESSAGES:
        body["messages"][1]["content"] = [{"type": "text", "text": reply}]
        body["messages"][2]["content"] = [{"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}]
    return body


def text_of(path: str, answer: Answer, stream: bool) -> str:
    """The text of an answer, as the API's clients read it."""
    if path == MESSAGES:
        if not stream:
            return str(answer.json["content"][0]["text"])
        return "".join(event["delta"].get("text", "") for event in answer.events if "delta" in event)
    if path == RESPONSES:
        if not stream:
            return str(answer.json["output"][0]["content"][0]["text"])
        return "".join(event["delta"] for event in answer.events if "delta" in event)
    choices = [event["choices"][0] for event in (answer.events if stream else [answer.json])]
    return "".join(
        str(choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or "")
        for choice in choices
    )


@pytest.mark.parametrize("path", GENERATE)
@pytest.mark.parametrize("stream", [False, True])
async def test_both_legs_and_the_next_turn(cluster: Cluster, path: str, stream: bool) -> None:
    answer = await cluster.post(first(path, stream=stream), path)
    assert answer.status == 200
    assert text_of(path, answer, stream) == REPLY
    (prefill,), (decode,) = cluster.prefill.at(path), cluster.decode.at(path)
    assert prefill.body["stream"] is False
    assert prefill.body["kv_transfer_params"]["do_remote_decode"] is True
    assert decode.body["kv_transfer_params"]["do_remote_prefill"] is True
    assert {**decode.body, "kv_transfer_params": None} == {**first(path, stream=stream), "kv_transfer_params": None}
    following = await cluster.post(second(path, stream=stream), path)
    assert following.turn["path"] == "read_back"
    assert int(following.turn["reused"]) == int(following.turn["offered"])
    for one in (answer, following):
        for secret in (b"decode-secret", b"remote_", b"neuron_pd_handle", b"5600"):
            assert secret not in one.raw


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_of_messages_in_the_transcript(cluster: Cluster, stream: bool) -> None:
    call = {"id": "toolu_1", "name": "look", "input": {"q": "sea"}}
    cluster.decode.reply, cluster.decode.tool_calls = "", [call]
    await cluster.post(first(MESSAGES, stream=stream), MESSAGES)
    body = first(MESSAGES)
    thoughts = {"type": "thinking", "thinking": "hm", "signature": "s"}
    body["messages"] += [
        {"role": "assistant", "content": [thoughts, {"type": "tool_use", **call}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "blue"}]},
    ]
    assert (await cluster.post(body, MESSAGES)).turn["path"] == "read_back"


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_of_responses_in_the_transcript(cluster: Cluster, stream: bool) -> None:
    call = {"call_id": "c1", "name": "look", "arguments": '{"q": "sea"}'}
    cluster.decode.reply, cluster.decode.tool_calls = "", [call]
    tools = [{"type": "function", "name": "look"}]
    answer = await cluster.post(first(RESPONSES, stream=stream, tools=tools), RESPONSES)
    output = answer.events[-1]["response"]["output"] if stream else answer.json["output"]
    items = [{"role": "user", "content": LONG}, {"type": "reasoning", "summary": []}, *output]
    items.append({"type": "function_call_output", "call_id": "c1", "output": "blue"})
    following = await cluster.post(first(RESPONSES, tools=tools, input=items), RESPONSES)
    assert following.turn["path"] == "read_back"


async def test_a_previous_response_goes_to_the_d_that_has_it_and_is_reused_from_there() -> None:
    async with running(decode=2) as cluster:
        for number in range(4):
            answer = await cluster.post(first(RESPONSES, input=f"{number} {LONG}"), RESPONSES)
            at = next(
                one for one in cluster.decodes if one.generated and one.generated[-1].body["input"][0] == str(number)
            )
            name = answer.json["id"]
            following = await cluster.post(
                {"model": "fake", "input": f"go on {number}", "previous_response_id": name}, RESPONSES
            )
            sent = at.generated[-1].body
            assert (following.status, sent["previous_response_id"], sent["input"]) == (200, name, f"go on {number}")
            assert len(sent["kv_transfer_params"][HANDLE]) == 32
            await cluster.get(f"/v1/responses/{name}")
            assert at.at(f"/v1/responses/{name}")
        assert not any("previous_response_id" in request.body for request in cluster.prefill.generated)


async def test_another_tenants_response_is_not_looked_up(cluster: Cluster) -> None:
    answer = await cluster.post(first(RESPONSES), RESPONSES, authorization="Bearer one")
    await cluster.post(
        {"model": "fake", "input": "x", "previous_response_id": answer.json["id"]},
        RESPONSES,
        authorization="Bearer two",
    )
    assert cluster.proxy.metrics.conversations.get("response", "no") == 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"n": 2}, "several_choices"), ({"prompt_logprobs": 2}, "prompt_logprobs"), ({"echo": True}, "echo")],
)
async def test_what_d_serves_alone_is_recorded_for_the_next_turn(
    cluster: Cluster, fields: dict[str, Any], reason: str
) -> None:
    """router-cases: `n > 1`, `best_of`, `prompt_logprobs`, `echo` with logprobs are answered correctly."""
    sent = first(COMPLETIONS, **fields)
    answer = await cluster.post(sent, COMPLETIONS)
    assert answer.status == 200
    assert len(answer.json["choices"]) == fields.get("n", 1)
    assert cluster.proxy.metrics.alone.get(reason) == 1
    assert not cluster.prefill.generated
    (decode,) = cluster.decode.generated
    (name,) = decode.body["kv_transfer_params"]
    assert name == HANDLE
    assert {**sent, "kv_transfer_params": decode.body["kv_transfer_params"]} == decode.body
    assert (await cluster.post(second(COMPLETIONS), COMPLETIONS)).turn["path"] == "read_back"


@pytest.mark.parametrize("path", GENERATE)
async def test_a_plain_error_is_the_engines(cluster: Cluster, path: str) -> None:
    """An engine without this endpoint says so itself."""
    cluster.prefill.faults.status = 404
    answer = await cluster.post(first(path), path)
    assert (answer.status, answer.raw) == (404, cluster.prefill.faults.status_body)
    assert not cluster.decode.generated


@pytest.mark.parametrize("path", [*GENERATE, "/v1/audio/transcriptions"])
async def test_transfer_params_do_not_come_in_by_vllms_other_door(cluster: Cluster, path: str) -> None:
    """vLLM merges `vllm_xargs` with `kv_transfer_params`: its engine would act on them, or die of what is no object."""
    answer = await cluster.post(first(path, vllm_xargs={"kv_transfer_params": "x"}), path)
    assert (answer.status, answer.json["error"]["code"]) == (400, "forbidden_field")
    form = b'--b\r\nContent-Disposition: form-data; name="vllm_xargs"\r\n\r\n{"kv_transfer_params": "x"}\r\n--b--\r\n'
    answer = await cluster.post(form, "/v1/audio/transcriptions")
    assert answer.status == 400
    assert not cluster.decode.generated
    assert not cluster.decode.at("/v1/audio/transcriptions")


@pytest.mark.parametrize(("field", "read_back"), [("prompt_cache_key", True), ("user", False)])
async def test_hints(field: str, read_back: bool) -> None:
    """router-cases: `prompt_cache_key` is a hint, `user` only for affinity; neither is a conversation's id."""
    async with running(decode=3) as cluster:
        hint = {field: "account-1"}
        await cluster.post(chat(LONG + "one", **hint))
        other = await cluster.post(chat(LONG + "two", **hint))
        assert sorted(len(engine.generated) for engine in cluster.decodes) == [0, 0, 2]
        assert (other.turn["path"] == "read_back") is read_back
        if read_back:
            assert int(other.turn["reused"]) == len("<user>" + LONG)
        third = await cluster.post(chat(LONG + "one", REPLY, "go on", **hint))
        assert int(third.turn["reused"]) == len("<user><assistant>" + LONG + "one" + REPLY)


async def test_end_of_a_session_by_its_id(cluster: Cluster) -> None:
    await cluster.post(chat(LONG, conversation_id="a/b c"), authorization="Bearer one")
    await cluster.post(chat(LONG, conversation_id="a/b c"), authorization="Bearer two")
    handle = cluster.decode.generated[0].body["kv_transfer_params"][HANDLE]
    async with cluster.session.delete(
        f"{cluster.url}/neuron_pd/v1/conversations/a%2Fb%20c", headers={"authorization": "Bearer one"}
    ) as response:
        assert (response.status, await response.json()) == (200, {"id": "a/b c", "deleted": True})
    await cluster.proxy.leases.settle(5)
    assert cluster.decode.released == [handle]
    assert len(cluster.proxy.store) == 1
    await cluster.post(chat(LONG, REPLY, "x", conversation_id="a/b c"), authorization="Bearer one")
    assert not cluster.decode.at(control.ACQUIRE)
    await cluster.post(chat(LONG, REPLY, "x", conversation_id="a/b c"), authorization="Bearer two")
    assert len(cluster.decode.at(control.ACQUIRE)) == 1


async def test_end_of_a_session_names_model_and_salt(cluster: Cluster) -> None:
    await cluster.post({**chat(LONG, conversation_id="c", cache_salt="s"), "model": "adapter"})
    url = f"{cluster.url}/neuron_pd/v1/conversations/c"
    for query, deleted in (("", False), ("?model=adapter", False), ("?model=adapter&cache_salt=s", True)):
        async with cluster.session.delete(url + query) as response:
            assert (await response.json())["deleted"] is deleted
    async with cluster.session.get(url) as response:
        assert (response.status, response.headers["allow"]) == (405, "DELETE")


@pytest.mark.parametrize("named", [True, False])
async def test_end_of_a_session_by_a_header(cluster: Cluster, named: bool) -> None:
    fields = {"conversation_id": "c"} if named else {}
    await cluster.post(chat(LONG, **fields))
    handle = cluster.decode.generated[0].body["kv_transfer_params"][HANDLE]
    last = await cluster.post(chat(LONG, REPLY, "go on", **fields), X_Neuron_PD_Session="end")
    assert last.turn["path"] == "read_back"
    assert HANDLE not in cluster.decode.generated[1].body["kv_transfer_params"]
    assert "x-neuron-pd-session" not in cluster.decode.generated[1].headers
    await cluster.proxy.leases.settle(5)
    assert cluster.decode.released == [handle]
    assert len(cluster.proxy.store) == 0


async def test_a_long_conversation_keeps_few_keys(cluster: Cluster) -> None:
    """router-cases: 100,000 conversations, bounded memory: also of each one."""
    contents = [LONG]
    for turn in range(15):
        assert (await cluster.post(chat(*contents))).turn["path"] == ("read_back" if turn else "recompute")
        contents += [REPLY, f"go on {turn}"]
    assert len(cluster.proxy.store) <= 8
    branch = await cluster.post(chat(*contents[:-4], "another way"))
    assert branch.turn["path"] == "read_back"
