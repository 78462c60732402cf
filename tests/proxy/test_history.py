"""Whether a request goes on from a finished turn."""

from typing import Any

import pytest

from neuron_pd.proxy.history import MARK_BYTES, added, mark

SYSTEM = {"role": "system", "content": "be brief"}
ASK, REPLY, MORE = (
    {"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), "abc", strict=True)
)


def handle(body: dict[str, Any]) -> str:
    marked = mark(body)
    assert marked is not None
    assert len(marked) == 2 * MARK_BYTES
    return marked + "0" * (32 - len(marked))


def test_what_is_new_is_what_follows_the_reply() -> None:
    finished = handle({"model": "m", "messages": [SYSTEM, ASK]})
    assert added({"model": "m", "messages": [SYSTEM, ASK, REPLY, MORE]}, finished) == b'[{"content":"c","role":"user"}]'
    # The reply itself may come back altered: D's cache decides.
    assert added({"model": "m", "messages": [SYSTEM, ASK, {**REPLY, "content": "x"}, MORE]}, finished)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "messages": [ASK, REPLY, MORE]},
        {"model": "m", "messages": [SYSTEM, MORE, REPLY, MORE]},
        {"model": "other", "messages": [SYSTEM, ASK, REPLY, MORE]},
        {"model": "m", "messages": [SYSTEM, ASK, REPLY, MORE], "tools": [{}]},
        {"model": "m", "messages": [SYSTEM, ASK, REPLY, MORE, REPLY, MORE]},
        {"model": "m", "messages": [SYSTEM, ASK, REPLY]},
        {"model": "m", "messages": [SYSTEM, ASK]},
        {"model": "m", "messages": []},
        {"model": "m", "prompt": "text"},
        {"model": "m", "messages": "text"},
    ],
)
def test_anything_else_does_not_go_on(body: dict[str, Any]) -> None:
    assert added(body, handle({"model": "m", "messages": [SYSTEM, ASK]})) is None


def test_tool_results_are_new() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "42"}
    finished = handle({"messages": [ASK]})
    assert added({"messages": [ASK, call, result]}, finished) == b'[{"content":"42","role":"tool","tool_call_id":"1"}]'


def test_responses_input_and_no_messages_at_all() -> None:
    finished = handle({"input": [ASK], "instructions": "i"})
    assert added({"input": [ASK, REPLY, MORE], "instructions": "i"}, finished) is not None
    assert added({"input": [ASK, REPLY, MORE]}, finished) is None
    assert mark({"prompt": "text"}) is None


def test_what_orjson_refuses() -> None:
    body = {"messages": [{"role": "user", "content": "\ud800", "n": 2**80}]}
    assert mark(body) == mark(dict(body))
