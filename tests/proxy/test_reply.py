"""What is learned from D's answer as it passes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.proxy.apis import GENERATE, Reply
from neuron_pd.proxy.chain import assistant
from neuron_pd.proxy.reply import FinishTap, JsonTap, StreamTap, Tap, merged

COMPLETIONS_API = GENERATE["/v1/completions"]
CHAT_API = GENERATE["/v1/chat/completions"]


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"id": "1", "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


CHAT = (
    event(delta={"role": "assistant", "content": ""})
    + event(delta={"content": "one "})
    + b": a comment\n\n"
    + event(delta={"content": 'two\u2028 "finish_reason":"x"'})
    + event(delta={}, finish_reason="stop")
    + b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\ndata: [DONE]\n\n'
)


def fed(tap: Tap, data: bytes, size: int) -> Reply:
    for start in range(0, len(data), size):
        tap.feed(data[start : start + size])
    return tap.reply()


@pytest.mark.parametrize("size", [1, 2, 7, 50, 100_000])
def test_chat_stream(size: int) -> None:
    reply = fed(StreamTap(CHAT_API), CHAT, size)
    assert reply.finished
    assert reply.said == [assistant('one two\u2028 "finish_reason":"x"', [])]


@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_tool_calls(size: int) -> None:
    stream = (
        event(delta={"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": ""}}]})
        + event(delta={"tool_calls": [{"index": 0, "function": {"arguments": '{"q":'}}]})
        + event(delta={"tool_calls": [{"index": 1, "function": {"name": "go", "arguments": "{}"}}]})
        + event(delta={"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]})
        + event(delta={}, finish_reason="tool_calls")
    )
    reply = fed(StreamTap(CHAT_API), stream, size)
    assert reply.finished
    assert reply.said == [assistant("", [("look", {"q": "x"}), ("go", {})])]


def test_completions_stream() -> None:
    stream = event(text="one ") + event(text="two") + event(text="", finish_reason="length") + b"data: [DONE]\n\n"
    reply = fed(StreamTap(COMPLETIONS_API), stream, 100)
    assert reply.finished
    assert reply.said == "one two"


def test_stream_larger_than_a_batch() -> None:
    stream = b"".join(event(delta={"content": f"{number} "}) for number in range(5000)) + event(finish_reason="stop")
    reply = fed(StreamTap(CHAT_API), stream, 1000)
    assert reply.finished
    assert reply.said == [assistant("".join(f"{number} " for number in range(5000)), [])]


@pytest.mark.parametrize("tap", [StreamTap, FinishTap])
@pytest.mark.parametrize("size", [1, 30, 100_000])
def test_a_stream_that_breaks_off_or_fails_has_not_finished(tap: type[StreamTap], size: int) -> None:
    started = event(delta={"content": 'say "finish_reason":"stop"'}, finish_reason=None)
    failed = b'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n'
    assert not fed(tap(CHAT_API), started, size).finished
    assert not fed(tap(CHAT_API), started + failed, size).finished


@pytest.mark.parametrize("size", [1, 3, 30, 100_000])
def test_finish_alone(size: int) -> None:
    assert fed(FinishTap(CHAT_API), CHAT, size).finished
    assert fed(FinishTap(CHAT_API), CHAT.replace(b": ", b":"), size).finished


def test_whole_answers() -> None:
    body = {"choices": [{"message": {"content": "hi", "refusal": None}, "finish_reason": "stop"}]}
    assert fed(JsonTap(CHAT_API), json.dumps(body).encode(), 1000) == Reply(True, [assistant("hi", [])])
    cut = fed(JsonTap(COMPLETIONS_API), b'{"choices":[{"text":"in pieces","finish_reason":"stop"}]}', 7)
    assert cut == Reply(True, "in pieces")


def test_only_the_first_choice_is_read() -> None:
    stream = event(text="one") + event(text="other", index=1) + event(text="", finish_reason="stop")
    assert fed(StreamTap(COMPLETIONS_API), stream, 100).said == "one"


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b'{"error":{}}', b'{"choices":[]}', b'{"choices":[{"text":"x"}]}']
)
def test_answers_that_do_not_finish(body: bytes) -> None:
    for api in GENERATE.values():
        assert not fed(JsonTap(api), body, 1000).finished


def compact(**choice: Any) -> bytes:
    body = {"id": "1", "choices": [{"index": 0, **choice, "logprobs": None}]}
    return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


DELTAS = st.one_of(
    st.text().map(lambda text: {"content": text}),
    st.sampled_from(['"', "\\", 'a","x":"b', "\\n", "\u2028", "{}"]).map(lambda text: {"content": text}),
    st.text().map(lambda text: {"reasoning_content": text}),
    st.text().map(lambda text: {"content": text, "role": "assistant"}),
    st.text().map(lambda text: {"role": "assistant", "content": text, "x": "y"}),
    st.just({}),
)


@given(st.lists(DELTAS), st.integers(1, 400))
def test_merging_tokens_loses_nothing(deltas: list[dict[str, str]], size: int) -> None:
    stream = b"".join(compact(delta=delta) for delta in deltas)
    reply = fed(StreamTap(CHAT_API), stream + compact(delta={}, finish_reason="stop"), size)
    assert reply.finished
    assert reply.said == [assistant("".join(delta.get("content", "") for delta in deltas), [])]


def test_tokens_in_a_row_are_read_as_one() -> None:
    stream = b"".join(compact(delta={"content": f" {word}"}) for word in ("one", "two", "three"))
    assert merged(stream).count(b"data: ") == 1
    assert b'" one two three"' in merged(stream)
