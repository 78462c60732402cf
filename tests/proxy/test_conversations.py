"""Which conversation a request belongs to."""

from typing import Any

import pytest

from neuron_pd.proxy.apis import GENERATE, Reply
from neuron_pd.proxy.apis.chat import canonical
from neuron_pd.proxy.chain import STEP, TURNS_KEPT
from neuron_pd.proxy.conversations import Conversation, Scope, identify
from neuron_pd.proxy.http import Request

USER = {"role": "user", "content": "hello"}
REPLY = {"role": "assistant", "content": "hi there"}
NEXT = {"role": "user", "content": "go on"}


def of(body: dict[str, Any], path: str = "", **headers: str) -> Conversation:
    """The conversation of a request: to the API that its body looks like, unless a path is given."""
    path = path or ("/v1/completions" if "prompt" in body else "/v1/chat/completions")
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    request, body = Request(b"POST", path.encode(), pairs, b"", keep_alive=True), {"model": "m", **body}
    scope = Scope(request.get(b"authorization") or b"", body["model"], body.get("cache_salt"))
    return identify(request, body, GENERATE[path], scope)


def found(after: Conversation, reply: Any, later: Conversation) -> int | None:
    """At which place of the later lookup the finished turn is found: 0 is the longest chain."""
    said = [canonical(reply)] if isinstance(reply, dict) else reply
    stored = set(after.finished(Reply(True, said)))
    return next((place for place, key in enumerate(later.lookup) if key in stored), None)


def test_body_before_headers_before_transcript() -> None:
    messages = {"messages": [USER]}
    assert of({**messages, "conversation_id": "a"}, x_session_id="b").lookup == of({"conversation_id": "a"}).lookup
    assert of(messages, x_session_id="b").source == "header"
    assert of(messages).source == "transcript"
    assert of({}).lookup == ()


def test_order_of_headers() -> None:
    names = ["x_session_id", "x_claude_code_agent_id", "x_claude_code_session_id", "thread_id", "session_id",
             "x_session_affinity", "x_litellm_session_id", "x_dynamo_session_id"]  # fmt: skip
    for place, name in enumerate(names):
        together = of({}, **{other: other for other in names[place:]})
        assert together.lookup == of({}, x_session_id=name).lookup


@pytest.mark.parametrize("name", ["x_request_id", "traceparent", "x_correlation_id", "user"])
def test_what_does_not_name_a_conversation(name: str) -> None:
    assert of({}, **{name: "a"}).lookup == ()
    assert of({"user": "a", "prompt_cache_key": "b"}).lookup == ()


def test_scope() -> None:
    keys = {
        of({"conversation_id": "a"}).lookup[0],
        of({"conversation_id": "a"}, authorization="Bearer one").lookup[0],
        of({"conversation_id": "a"}, authorization="Bearer two").lookup[0],
        of({"conversation_id": "a", "model": "other"}).lookup[0],
        of({"conversation_id": "a", "cache_salt": "s"}).lookup[0],
        of({"conversation_id": "b"}).lookup[0],
    }
    assert len(keys) == 6


def test_session_end() -> None:
    assert of({}, x_dynamo_session_id="a-Final").final
    assert of({}, x_dynamo_session_id="a-Final").lookup == of({}, x_dynamo_session_id="a").lookup
    assert not of({"conversation_id": "a-Final"}).final


def test_the_next_turn_is_found_by_its_longest_chain() -> None:
    first, second = of({"messages": [USER]}), of({"messages": [USER, REPLY, NEXT]})
    assert found(first, REPLY, second) == 1
    assert found(second, REPLY, of({"messages": [USER, REPLY, NEXT, REPLY, NEXT]})) == 1


def test_a_reply_not_collected_is_found_by_the_part_before() -> None:
    assert found(of({"messages": [USER]}), None, of({"messages": [USER, REPLY, NEXT]})) == 2


def test_an_altered_reply_is_found_by_the_part_before() -> None:
    altered = {"role": "assistant", "content": "hi"}
    assert found(of({"messages": [USER]}), REPLY, of({"messages": [USER, altered, NEXT]})) == 2


@pytest.mark.parametrize(
    "resent",
    [
        {"role": "assistant", "content": "hi there", "refusal": None, "annotations": []},
        {"role": "assistant", "content": "hi there", "tool_calls": []},
        {"role": "assistant", "content": "hi there", "tool_calls": None, "reasoning": "thought"},
        {"role": "assistant", "content": [{"type": "text", "text": "hi "}, {"type": "text", "text": "there"}]},
    ],
)
def test_replies_that_mean_the_same(resent: dict[str, Any]) -> None:
    assert found(of({"messages": [USER]}), REPLY, of({"messages": [USER, resent, NEXT]})) == 1


@pytest.mark.parametrize("content", [None, ""])
def test_tool_calls_that_mean_the_same(content: str | None) -> None:
    reply = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]}
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    resent = {"role": "assistant", "content": content, "tool_calls": [call]}
    assert found(of({"messages": [USER]}), reply, of({"messages": [USER, resent, NEXT]})) == 1


def test_another_history_is_not_found() -> None:
    edited = {"role": "user", "content": "hallo"}
    first = of({"messages": [USER]})
    assert found(first, REPLY, of({"messages": [edited, REPLY, NEXT]})) is None
    assert found(first, REPLY, of({"messages": [USER, REPLY, NEXT], "tools": [{"x": 1}]})) is None
    assert found(first, REPLY, of({"messages": [USER, REPLY, NEXT]}, authorization="other")) is None


def test_two_branches_are_both_found() -> None:
    first = of({"messages": [USER]})
    for text in ("one", "two"):
        assert found(first, REPLY, of({"messages": [USER, REPLY, {"role": "user", "content": text}]})) == 1


def test_strange_messages_are_hashed_too() -> None:
    strange = [
        None,
        1,
        "x",
        {"role": "assistant", "tool_calls": "no", "content": 5},
        {"content": "\ud83d", "n": 10**30},
    ]
    assert len(of({"messages": strange}).lookup) == 5


@pytest.mark.parametrize("wrapped", [False, True])
def test_completions_text(wrapped: bool) -> None:
    prompt, reply = "word " * 200, "reply " * 60

    def body(text: str) -> dict[str, Any]:
        return {"prompt": [text] if wrapped else text}

    first = of(body(prompt))
    assert len(first.lookup) == len(prompt) // STEP
    second = of(body(prompt + reply + "more " * 100))
    longest = (len(second.lookup) * STEP) - (len(prompt + reply) // STEP) * STEP
    assert found(first, reply, second) == longest // STEP
    assert found(first, reply, of(body("other " + prompt + reply))) is None


def test_completions_tokens() -> None:
    first = of({"prompt": list(range(600))})
    assert found(first, "text", of({"prompt": list(range(1200))})) == 2
    assert of({"prompt": ["a", "b"]}).lookup == ()
    assert of({"prompt": "short"}).lookup == ()


@pytest.mark.parametrize("name", ["conversation_id", "conversation"])
def test_names_in_the_body(name: str) -> None:
    assert of({name: "a"}).source == "body"
    assert of({name: "a"}).lookup == of({"conversation_id": "a"}).lookup
    assert of({"conversation": {"id": "a"}}).lookup == of({"conversation_id": "a"}).lookup
    assert of({"conversation": {}}).lookup == ()


def test_headers_come_before_the_responses_apis_fields() -> None:
    body = {"conversation": "b", "previous_response_id": "r", "input": "x"}
    named = of(body, "/v1/responses", x_session_id="a")
    assert named.source == "header"
    assert named.lookup[-1] == of({}, x_session_id="a").lookup[0]
    assert of(body, "/v1/responses").lookup[-1] == of({"conversation_id": "b"}).lookup[0]
    previous = of({"previous_response_id": "r", "input": "x"}, "/v1/responses")
    assert (previous.source, len(previous.lookup)) == ("response", 1)
    assert previous.lookup == named.lookup[:1]


def test_a_response_is_stored_under_its_id_too() -> None:
    finished = of({"input": "hello"}, "/v1/responses").finished(Reply(True, [], "resp_1"))
    assert of({"previous_response_id": "resp_1"}, "/v1/responses").lookup[0] in finished
    other = of({"previous_response_id": "resp_1"}, "/v1/responses", authorization="Bearer x")
    assert other.lookup[0] not in finished


def test_a_session_ends_by_its_own_header_only() -> None:
    both = of({}, x_session_id="a-Final", x_dynamo_session_id="b-Final")
    assert not both.final
    assert of({"messages": [USER]}, x_neuron_pd_session="end").final


def test_a_secret_keys_the_digests() -> None:
    one, other = (Scope(b"t", "m", None, secret).key(b"id", b"a") for secret in (b"", b"s"))
    assert one != other


def test_hints_are_scoped() -> None:
    hints = [
        of({"prompt_cache_key": "a"}).hint,
        of({"user": "a"}).hint,
        of({"user": "a", "prompt_cache_key": "a"}).hint,
        of({"prompt_cache_key": "a", "model": "other"}).hint,
        of({"prompt_cache_key": "a"}, authorization="Bearer x").hint,
    ]
    assert [hint.prefix for hint in hints if hint] == [True, False, True, True, True]
    assert len({hint.key for hint in hints if hint}) == 4
    assert of({"messages": [USER]}).hint is None


def test_old_turns_are_outgrown() -> None:
    """Of a transcript the last few turns are kept, so that a branch from one of them is recognised."""
    messages: list[Any] = [USER]
    stored: dict[bytes, int] = {}
    for turn in range(20):
        conversation = of({"messages": messages})
        for key in conversation.outgrown():
            stored.pop(key, None)
        stored.update(dict.fromkeys(conversation.finished(Reply(True, [canonical(REPLY)])), turn))
        assert len(stored) <= 2 * TURNS_KEPT
        messages = [*messages, REPLY, {"role": "user", "content": str(turn)}]
    assert set(stored.values()) == set(range(20 - TURNS_KEPT, 20))
