"""What P and D are sent."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_pd.core.transfer import first_leg
from neuron_pd.proxy.apis import GENERATE, Alone, Api
from neuron_pd.proxy.bodies import Generate
from neuron_pd.proxy.errors import Refusal

LEG = first_leg()
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


CHAT, COMPLETIONS, MESSAGES, RESPONSES = (
    GENERATE[f"/v1/{path}"] for path in ("chat/completions", "completions", "messages", "responses")
)


def prefill(body: dict[str, Any], api: Api = CHAT) -> Any:
    return json.loads(Generate(api, json.dumps(body).encode()).for_prefill(LEG))


@pytest.mark.parametrize(
    ("sent", "to_prefill"),
    [
        ({}, {"max_tokens": 1}),
        ({"max_tokens": 500}, {"max_tokens": 1}),
        ({"max_completion_tokens": 500}, {"max_tokens": 1, "max_completion_tokens": 1}),
        ({"max_output_tokens": 500}, {"max_tokens": 1, "max_output_tokens": 1}),
        ({"max_tokens": None}, {"max_tokens": 1}),
        ({"min_tokens": 10, "stream": True, "stream_options": {"include_usage": True}}, {"max_tokens": 1}),
        ({"n": 1, "best_of": 1}, {"max_tokens": 1, "n": 1}),
        ({"conversation_id": "c"}, {"max_tokens": 1}),
        (
            {"tools": [{"x": 1}], "tool_choice": "required"},
            {"max_tokens": 1, "tools": [{"x": 1}], "tool_choice": "required"},
        ),
        ({"response_format": {"type": "json_schema"}}, {"max_tokens": 1, "response_format": {"type": "json_schema"}}),
    ],
)
def test_prefill_generates_one_token(sent: dict[str, Any], to_prefill: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "hello"}]
    expected = {"model": "m", "messages": messages, "stream": False, "kv_transfer_params": LEG, **to_prefill}
    assert prefill({"model": "m", "messages": messages, **sent}) == expected


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(), JSON_VALUES, max_size=5), st.integers(0, 3))
def test_decode_gets_the_clients_own_bytes(body: dict[str, Any], indent: int) -> None:
    for name in ("kv_transfer_params", "ec_transfer_params", "conversation_id"):
        body.pop(name, None)
    raw = json.dumps(body, indent=indent or None).encode() + b" \n" * indent
    call = Generate(CHAT, raw)
    assert call.for_decode(None) == raw
    sent = call.for_decode({"remote_port": 5600})
    assert sent.startswith(raw.rstrip()[:-1])
    assert json.loads(sent) == {**body, "kv_transfer_params": {"remote_port": 5600}}


def test_conversation_id_and_null_transfer_params_are_taken_out() -> None:
    call = Generate(CHAT, b'{"conversation_id":"c","kv_transfer_params":null,"n":1,"seed":12345678901234567890}')
    assert json.loads(call.for_decode({"a": 1})) == {
        "n": 1,
        "seed": 12345678901234567890,
        "kv_transfer_params": {"a": 1},
    }
    assert json.loads(call.for_decode(None)) == {"n": 1, "seed": 12345678901234567890}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"kv_transfer_params":{"remote_host":"10.0.0.1"}}',
        b'{"kv\\u005ftransfer_params":{"remote_host":"10.0.0.1"}}',
        b'{"ec_transfer_params":{"x":1}}',
        b'{"kv_transfer_params":"x"}',
        b'{"vllm_xargs":{"kv_transfer_params":"x"}}',
        b'{"vllm_xargs":{"ec_transfer_params":null}}',
    ],
)
def test_transfer_params_of_a_client_are_refused(raw: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        Generate(CHAT, raw)
    assert refused.value.status == 400
    assert refused.value.code == "forbidden_field"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"null", b"\xff", b"[" * 100_000])
def test_not_an_object(raw: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        Generate(CHAT, raw)
    assert refused.value.status == 400


def test_lone_surrogates_and_nan_pass_as_python_reads_them() -> None:
    call = Generate(CHAT, b'{"prompt":"half \\ud83d","temperature":NaN,"seed":100000000000000000000000}')
    sent = json.loads(call.for_prefill(LEG))
    assert sent["prompt"] == "half \ud83d"
    again = json.loads(call.for_decode({"a": 1}))
    assert again["prompt"] == "half \ud83d"
    assert again["seed"] == 10**23
    assert again["temperature"] != again["temperature"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"prompt": ["one"]}, None),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": [[1, 2, 3]]}, None),
        ({"n": 1, "best_of": 1, "logprobs": 5, "echo": False, "prompt_logprobs": None}, None),
        ({"prompt": ["one", "two"]}, Alone.SEVERAL_PROMPTS),
        ({"prompt": [[1], [2]]}, Alone.SEVERAL_PROMPTS),
        ({"n": 2}, Alone.SEVERAL_CHOICES),
        ({"best_of": 2}, Alone.SEVERAL_CHOICES),
        ({"use_beam_search": True}, Alone.BEAM_SEARCH),
        ({"prompt_logprobs": 0}, Alone.PROMPT_LOGPROBS),
        ({"echo": True, "logprobs": 1}, Alone.ECHO),
        ({"truncate_prompt_tokens": -1}, Alone.TRUNCATION),
        ({"prompt_embeds": "x"}, Alone.EMBEDS),
        ({"max_tokens": 0}, Alone.NO_OUTPUT),
    ],
)
def test_what_one_engine_must_serve(fields: dict[str, Any], reason: Alone | None) -> None:
    assert Generate(COMPLETIONS, json.dumps(fields).encode()).alone() == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input": "x", "tools": [{"type": "function"}], "truncation": "disabled"}, None),
        ({"previous_response_id": "resp_1"}, Alone.PREVIOUS_RESPONSE),
        ({"background": True}, Alone.BACKGROUND),
        ({"tools": [{"type": "function"}, {"type": "mcp"}]}, Alone.ENGINE_TOOLS),
        ({"truncation": "auto"}, Alone.TRUNCATION),
        ({"max_output_tokens": 0}, Alone.NO_OUTPUT),
    ],
)
def test_what_one_engine_must_serve_of_responses(fields: dict[str, Any], reason: Alone | None) -> None:
    assert Generate(RESPONSES, json.dumps(fields).encode()).alone() == reason


def test_one_token_under_each_apis_own_name() -> None:
    """router-cases: `max_output_tokens` (Responses API): same rule under its own name."""
    leg = {"stream": False, "kv_transfer_params": LEG}
    assert prefill({"input": "x", "max_output_tokens": 500, "stream": True, "store": True}, RESPONSES) == {
        "input": "x", "max_output_tokens": 1, "store": False, **leg,
    }  # fmt: skip
    assert prefill({"input": "x"}, RESPONSES) == {"input": "x", "max_output_tokens": 1, "store": False, **leg}
    thinking = {"type": "enabled", "budget_tokens": 100}
    assert prefill({"messages": [], "max_tokens": 500, "thinking": thinking}, MESSAGES) == {
        "messages": [], "max_tokens": 1, "thinking": thinking, **leg,
    }  # fmt: skip
