"""What users of P/D routers run into: each kind of symptom, and the tests that hold the behaviour expected here.

The rows whose tests are nowhere else are in this file.
"""

import ast
from functools import cache
from os.path import commonprefix
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.apis import GENERATE, MESSAGES, RESPONSES, prompt_text
from tests.proxy.conftest import Cluster, chat
from tests.proxy.test_apis import REPLY, first

HERE = Path(__file__).parent
LONG = "please tell me everything about the sea and the ships on it"

SENT = {
    "a cap under another name: P generates one token, D gets the original": [
        "test_turn.test_what_each_leg_is_sent",
        "test_bodies.test_one_token_under_each_apis_own_name",
    ],
    "min_tokens, stream, stream_options, no cap, n, best_of": [
        "test_bodies.test_prefill_generates_one_token",
        "test_bodies.test_decode_gets_the_clients_own_bytes",
        "test_apis.test_what_d_serves_alone_is_recorded_for_the_next_turn",
    ],
    "several prompts in one completions request": ["test_turn.test_served_by_d_alone"],
    "prompt_logprobs, echo with logprobs": ["test_apis.test_what_d_serves_alone_is_recorded_for_the_next_turn"],
    "a LoRA name as model": [
        "test_turn.test_model_name_goes_to_both_legs_and_ps_404_comes_back",
        "test_reuse.test_another_adapter_or_salt_is_not_recognised",
    ],
    "tool choice, JSON schema, structured outputs": ["test_router_cases.test_ps_one_token_is_ignored"],
}
GOT = {
    "a whole answer is D's JSON": ["test_turn.test_whole_answer_is_ds_own_without_transfer_params"],
    "a stream is D's bytes": [
        "test_turn.test_streamed_answer_is_ds_own_without_transfer_params",
        "test_scrub.test_a_partial_line_is_not_held_back",
    ],
    "line separators inside a chunk": ["test_turn.test_odd_bytes_in_odd_pieces"],
    "a usage chunk with empty choices": ["test_turn.test_usage_chunk_is_passed_on_and_never_invented"],
    "one id and created a stream": ["test_turn.test_streamed_answer_is_ds_own_without_transfer_params"],
    "block ids and addresses stay inside": [
        "test_apis.test_both_legs_and_the_next_turn",
        "test_offers.test_pin_mode",
        "test_offers.test_vllms_own_connector",
    ],
}
FAULTS = {
    "D refuses the connection": [
        "test_faults.test_another_d_takes_over_when_the_first_refuses",
        "test_faults.test_the_only_d_refuses_then_comes_back",
    ],
    "P answers 4xx": ["test_faults.test_ps_4xx_comes_back_at_once_and_d_is_never_called"],
    "P answers 408, 429, 504": ["test_faults.test_status_and_retry_after_are_kept"],
    "D dies mid-stream": ["test_faults.test_d_dies_mid_stream"],
    "a prefill of a minute": ["test_faults.test_prefill_timeout", "test_faults.test_timeouts_of_d"],
    "nothing ready": ["test_ready.test_nothing_listens"],
    "after a burst of failures": ["test_faults.test_breaker_recovers_after_a_burst_of_failures"],
    "a backend that is not what it was said to be": ["test_ready.test_not_what_it_should_be"],
}
CLIENTS = {
    "during prefill": ["test_faults.test_client_leaves_during_prefill"],
    "during decode": ["test_faults.test_client_leaves_during_decode"],
    "500 that send and reset": ["test_faults.test_500_clients_that_send_and_reset"],
}
LOAD = {
    "300 streams": ["test_load.test_300_streams_reach_d_together_and_health_answers"],
    "many conversations": [
        "store.test_memory.test_conversations_stay_within_the_bound_and_cost_what_is_said",
        "test_apis.test_a_long_conversation_keeps_few_keys",
    ],
}
REUSE = {
    "the history was edited or compacted": ["test_reuse.test_edited_history_reuses_exactly_the_common_prefix"],
    "its reasoning was stripped": ["test_router_cases.test_stripped_reasoning_reuses_the_prompt_before_it"],
    "tools, system prompt or template arguments changed": [
        "test_router_cases.test_what_is_rendered_before_the_messages_changed"
    ],
    "two concurrent turns": ["test_reuse.test_two_turns_at_once_have_a_lease_each"],
    "a retried prefill leg": ["test_faults.test_a_lease_of_a_failed_prefill_is_given_back_and_the_retry_has_its_own"],
    "an entry that expired, an engine that restarted": [
        "test_reuse.test_ttl",
        "test_reuse.test_d_restarted_and_forgot",
        "test_offers.test_a_pin_that_has_ended_is_not_handed_out",
    ],
    "a side-channel host that means itself": ["test_turn.test_side_channel_host_that_means_itself"],
    "conversation ids": [
        "test_conversations.test_order_of_headers",
        "test_conversations.test_what_does_not_name_a_conversation",
        "test_conversations.test_scope",
        "test_apis.test_hints",
    ],
    "a client that supplies transfer parameters, or another tenant's id": [
        "test_turn.test_transfer_params_of_a_client_are_refused",
        "test_apis.test_transfer_params_do_not_come_in_by_vllms_other_door",
        "test_reuse.test_another_tenant_is_not_recognised",
        "test_tenants.test_conversations_belong_to_the_tenant",
    ],
    "an explicit end of session": [
        "test_apis.test_end_of_a_session_by_its_id",
        "test_apis.test_end_of_a_session_by_a_header",
        "test_reuse.test_end_of_session_frees_the_entry",
    ],
    "messages, responses, models, tokenize, embeddings": [
        "test_apis.test_both_legs_and_the_next_turn",
        "test_passthrough.test_post",
        "test_passthrough.test_models",
    ],
    "with no id, the transcript": ["test_conversations.test_the_next_turn_is_found_by_its_longest_chain"],
}
ROWS = {**SENT, **GOT, **FAULTS, **CLIENTS, **LOAD, **REUSE}


@cache
def functions_of(module: str) -> frozenset[str]:
    tree = ast.parse((HERE / f"{module.replace('.', '/')}.py").read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_its_tests(row: str) -> None:
    for name in ROWS[row]:
        module, _, function = name.rpartition(".")
        assert function in functions_of(module)


@pytest.mark.parametrize("path", GENERATE)
async def test_ps_one_token_is_ignored(cluster: Cluster, path: str) -> None:
    """P's token is neither JSON nor a call. It gets the fields all the same: some of them render into the prompt."""
    fields: dict[str, Any] = {"tools": [{"type": "function", "name": "look"}], "tool_choice": {"type": "any"}}
    if path == RESPONSES:
        fields["text"] = {"format": {"type": "json_schema", "name": "x", "schema": {}}}
    elif path != MESSAGES:
        fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    answer = await cluster.post(first(path, **fields), path)
    assert (answer.status, REPLY in answer.raw.decode()) == (200, True)
    (prefill,) = cluster.prefill.generated
    assert {name: prefill.body[name] for name in fields} == fields


async def test_stripped_reasoning_reuses_the_prompt_before_it(cluster: Cluster) -> None:
    """D's KV has thoughts that the next prompt leaves out: what comes before them is reused, not a token more."""
    cluster.decode.reply = "<think>hm, the sea</think>blue"
    await cluster.post(chat(LONG, conversation_id="c"))
    answer = await cluster.post(chat(LONG, "blue", "go on", conversation_id="c"))
    assert int(answer.turn["reused"]) == len(f"<user>{LONG}<assistant>")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"tools": [{"name": "a"}]}, {"tools": [{"name": "b"}]}),
        ({}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"system": "be brief"}, {"system": "be long"}),
    ],
)
async def test_what_is_rendered_before_the_messages_changed(
    cluster: Cluster, before: dict[str, Any], after: dict[str, Any]
) -> None:
    bodies = chat(LONG, **before), chat(LONG, REPLY, "go on", **after)
    common = len(commonprefix([prompt_text(body) for body in bodies]))  # noqa: RUF071 - characters are meant
    for body in bodies:
        answer = await cluster.post({**body, "conversation_id": "c"})
    assert int(answer.turn["verified"]) == common < len("<user>" + LONG)
    assert answer.turn["reason"] == ("reused" if int(answer.turn["reused"]) else "no_common_prefix")
    assert cluster.proxy.metrics.reuse.get("hit" if int(answer.turn["reused"]) else "miss", answer.turn["reason"]) == 1
