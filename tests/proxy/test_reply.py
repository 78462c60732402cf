"""What is learned from D's answer as it passes."""

import json
from typing import Any

import pytest

from neuron_pd.proxy.reply import FinishTap, JsonTap, StreamTap, Tap


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


def fed(tap: Tap, data: bytes, size: int) -> Tap:
    for start in range(0, len(data), size):
        tap.feed(data[start : start + size])
    return tap


@pytest.mark.parametrize("size", [1, 2, 7, 50, 100_000])
def test_chat_stream(size: int) -> None:
    tap = fed(StreamTap(), CHAT, size)
    assert tap.finished
    assert tap.reply() == {"role": "assistant", "content": 'one two\u2028 "finish_reason":"x"', "tool_calls": []}


@pytest.mark.parametrize("size", [1, 50, 100_000])
def test_tool_calls(size: int) -> None:
    stream = (
        event(delta={"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": ""}}]})
        + event(delta={"tool_calls": [{"index": 0, "function": {"arguments": '{"q":'}}]})
        + event(delta={"tool_calls": [{"index": 1, "function": {"name": "go", "arguments": "{}"}}]})
        + event(delta={"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]})
        + event(delta={}, finish_reason="tool_calls")
    )
    tap = fed(StreamTap(), stream, size)
    assert tap.finished
    assert tap.reply() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"function": {"name": "look", "arguments": '{"q":"x"}'}},
            {"function": {"name": "go", "arguments": "{}"}},
        ],
    }


def test_completions_stream() -> None:
    stream = event(text="one ") + event(text="two") + event(text="", finish_reason="length") + b"data: [DONE]\n\n"
    tap = fed(StreamTap(), stream, 100)
    assert tap.finished
    assert tap.reply() == "one two"


def test_stream_larger_than_a_batch() -> None:
    stream = b"".join(event(delta={"content": f"{number} "}) for number in range(5000)) + event(finish_reason="stop")
    tap = fed(StreamTap(), stream, 1000)
    assert tap.finished
    reply = tap.reply()
    assert isinstance(reply, dict)
    assert reply["content"] == "".join(f"{number} " for number in range(5000))


@pytest.mark.parametrize("tap", [StreamTap, FinishTap])
@pytest.mark.parametrize("size", [1, 30, 100_000])
def test_a_stream_that_breaks_off_or_fails_has_not_finished(tap: type[StreamTap], size: int) -> None:
    started = event(delta={"content": 'say "finish_reason":"stop"'}, finish_reason=None)
    failed = b'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n'
    assert not fed(tap(), started, size).finished
    assert not fed(tap(), started + failed, size).finished


@pytest.mark.parametrize("size", [1, 3, 30, 100_000])
def test_finish_alone(size: int) -> None:
    assert fed(FinishTap(), CHAT, size).finished
    assert fed(FinishTap(), CHAT.replace(b": ", b":"), size).finished


def test_whole_answers() -> None:
    tap = JsonTap()
    tap.feed(
        json.dumps({"choices": [{"message": {"content": "hi", "refusal": None}, "finish_reason": "stop"}]}).encode()
    )
    assert tap.finished
    assert tap.reply() == {"role": "assistant", "content": "hi", "refusal": None}
    cut = fed(JsonTap(), b'{"choices":[{"text":"in pieces","finish_reason":"stop"}]}', 7)
    assert (cut.finished, cut.reply()) == (True, "in pieces")
    text = JsonTap()
    text.feed(b'{"choices":[{"text":"hi","finish_reason":"length"}]}')
    assert (text.finished, text.reply()) == (True, "hi")


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b'{"error":{}}', b'{"choices":[]}', b'{"choices":[{"text":"x"}]}']
)
def test_answers_that_do_not_finish(body: bytes) -> None:
    tap = JsonTap()
    tap.feed(body)
    assert not tap.finished
