import json
from typing import Any

import pytest

from neuron_pd.bench.stream import Events, Reply, error_text


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode()


def taken(*payloads: bytes) -> Reply:
    """The payloads as they would arrive at 1 s, 2 s, 3 s ..."""
    reply = Reply()
    for moment, payload in enumerate(payloads, start=1):
        reply.take(payload, float(moment))
    return reply


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_survive_any_cut(end: bytes, size: int) -> None:
    texts = ["one", "line\u2028separator\x85", "", "data: inside"]
    stream = b": comment" + end + b"event: x" + end
    stream += b"".join(b"data: " + json.dumps(text, ensure_ascii=False).encode() + end * 2 for text in texts)
    events = Events()
    found = [
        json.loads(payload) for at in range(0, len(stream), size) for payload in events.feed(stream[at : at + size])
    ]
    assert found == texts


def test_role_announcement_is_no_token() -> None:
    reply = taken(
        chunk({"role": "assistant", "content": ""}), chunk({"content": "Hi"}), chunk({"content": "!"}, "stop")
    )
    assert (reply.first_token, reply.first_content, reply.chunks) == (2.0, 2.0, [1.0, 2.0, 3.0])
    assert ("".join(reply.content), reply.finish_reason) == ("Hi!", "stop")


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0}]},
        {"content": ""},
        {"refusal": "no"},
    ],
)
def test_first_token_of_any_kind_comes_before_content(delta: dict[str, Any]) -> None:
    reply = taken(chunk({"role": "assistant", "content": ""}), chunk(delta), chunk({"content": "Hi"}))
    assert (reply.first_token, reply.first_content) == (2.0, 3.0)


def test_an_empty_last_chunk_is_no_token() -> None:
    assert taken(chunk({"content": ""}, "length")).first_token is None


def test_usage_and_null_fields() -> None:
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 7}}).encode()
    reply = taken(b'{"choices": null, "usage": null}', b'{"choices": [{"delta": null}]}', usage, b"[DONE]")
    assert (reply.usage, reply.done, reply.error) == ({"prompt_tokens": 7}, True, "")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b'{"error": {"message": "engine\\ndied", "code": 500}}', "engine died"),
        (b'{"error": "gone"}', "gone"),
        (b"[1]", "[1]"),
        (b"{torn", "the stream holds an event that is not JSON"),
    ],
)
def test_errors_in_the_stream(payload: bytes, message: str) -> None:
    assert taken(chunk({"content": "a"}), payload).error == message


def test_error_text_is_bounded() -> None:
    assert len(error_text({"error": {"message": "x" * 10_000}})) == 500
    assert error_text({"detail": "Not Found"}) == '{"detail": "Not Found"}'
