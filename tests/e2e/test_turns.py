"""Conversations on real engines through the real proxy. The model runs in float32: equal KV gives equal answers."""

import random
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.conftest import LENGTH, TOKEN, Cluster

pytestmark = pytest.mark.e2e

BLOCK = 128
SOURCE = Path(random.__file__).read_text()
Messages = list[dict[str, str]]


def user(start: int, chars: int) -> dict[str, str]:
    return {"role": "user", "content": SOURCE[start : start + chars]}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def blocks(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def shared(one: list[int], other: list[int]) -> int:
    """Tokens of the longest common prefix."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_every_turn_starts_from_the_one_before_and_answers_as_a_cold_run(cluster: Cluster) -> None:
    name, salt = uuid4().hex, uuid4().hex
    messages: Messages = [user(0, 3000)]
    before: list[int] = []
    for turn in range(4):
        answer = cluster.chat(messages, conversation_id=name, cache_salt=salt)
        prompt = cluster.tokens(messages)
        if turn == 0:
            assert (answer.turn["path"], answer.turn["reason"]) == ("recompute", "no_lease")
        else:
            # D holds the last prompt and its reply but for the last sampled token; what re-tokenises alike is reused.
            assert answer.reused >= blocks(len(before))
            assert answer.turn["path"] == "read_back"
        assert answer.text == cluster.cold(messages)
        before = prompt
        messages = [*messages, assistant(answer.text), user(3000 + 300 * turn, 300)]


def test_nothing_is_pinned_between_turns(cluster: Cluster) -> None:
    name = uuid4().hex
    messages = [user(500, 2000)]
    first = cluster.chat(messages, conversation_id=name)
    stats = cluster.settled()
    assert (stats["pinned_blocks"], stats["open_leases"], stats["kv_blocks_used"]) == (0, 0, 0)
    assert stats["ledger_records"] > 0
    reads = stats["leases_read"]
    assert cluster.chat([*messages, assistant(first.text), user(0, 200)], conversation_id=name).reused > 0
    stats = cluster.settled()
    assert (stats["pinned_blocks"], stats["open_leases"], stats["kv_blocks_used"]) == (0, 0, 0)
    assert stats["leases_read"] == reads + 1


def test_an_edited_history_reuses_nothing_and_answers_as_a_cold_run(cluster: Cluster) -> None:
    name = uuid4().hex
    first = cluster.chat([user(0, 3000)], conversation_id=name)
    edited = [user(9000, 3000), assistant(first.text), user(100, 200)]
    answer = cluster.chat(edited, conversation_id=name)
    assert (answer.turn["reason"], answer.reused) == ("mismatch", 0)
    assert answer.text == cluster.cold(edited)


@pytest.mark.parametrize("edit_at", [700, 1500, 2600])
def test_a_true_prefix_is_reused_exactly(cluster: Cluster, edit_at: int) -> None:
    name = uuid4().hex
    original = [user(4000, 3000)]
    cluster.chat(original, conversation_id=name)
    text = original[0]["content"]
    edited = [{"role": "user", "content": text[:edit_at] + " EDITED " + text[edit_at:]}]
    common = shared(cluster.tokens(original), cluster.tokens(edited))
    answer = cluster.chat(edited, conversation_id=name)
    assert answer.reused == blocks(common) > 0
    assert answer.text == cluster.cold(edited)


def test_a_shorter_prompt_reads_its_own_first_blocks(cluster: Cluster) -> None:
    name = uuid4().hex
    original = [user(6000, 3000)]
    cluster.chat(original, conversation_id=name)
    shorter = [{"role": "user", "content": original[0]["content"][:1300]}]
    answer = cluster.chat(shorter, conversation_id=name)
    assert answer.reused == blocks(shared(cluster.tokens(original), cluster.tokens(shorter))) > 0
    assert answer.text == cluster.cold(shorter)


def test_regenerating_a_reply_reuses_the_prompt(cluster: Cluster) -> None:
    name, messages = uuid4().hex, [user(7000, 2000)]
    first = cluster.chat(messages, conversation_id=name)
    again = cluster.chat(messages, conversation_id=name)
    assert again.reused == blocks(len(cluster.tokens(messages)))
    assert again.text == first.text


def test_two_branches_of_one_conversation_are_both_reused(cluster: Cluster) -> None:
    name, first = uuid4().hex, [user(2000, 2500)]
    history = [*first, assistant(cluster.chat(first, conversation_id=name).text)]
    for branch in (user(0, 150), user(5000, 150)):
        answer = cluster.chat([*history, branch], conversation_id=name)
        assert answer.reused >= blocks(len(cluster.tokens(first)))
        assert answer.text == cluster.cold([*history, branch])


@pytest.mark.parametrize("identity", [{}, {"headers": {"X-Session-ID": "session-1"}}], ids=["transcript", "header"])
def test_a_client_needs_no_change(cluster: Cluster, identity: dict[str, Any]) -> None:
    first = [user(1000, 2500)]
    history = [*first, assistant(cluster.chat(first, **identity).text), user(300, 150)]
    answer = cluster.chat(history, **identity)
    assert answer.reused >= blocks(len(cluster.tokens(first)))
    assert answer.text == cluster.cold(history)


def test_another_salt_shares_nothing(cluster: Cluster) -> None:
    name, first = uuid4().hex, [user(8000, 2000)]
    history = [*first, assistant(cluster.chat(first, conversation_id=name, cache_salt="one").text), user(0, 150)]
    assert cluster.chat(history, conversation_id=name, cache_salt="two").reused == 0


def test_completions_reuse_too(cluster: Cluster) -> None:
    body = {"model": "tiny", "temperature": 0, "max_tokens": 24, "ignore_eos": True, "conversation_id": uuid4().hex}
    url, prompt = f"{cluster.proxy}/v1/completions", SOURCE[3000:5000]
    first = cluster.http.post(url, json={**body, "prompt": prompt}).json()["choices"][0]["text"]
    longer = prompt + first + SOURCE[:200]
    second = cluster.http.post(url, json={**body, "prompt": longer})
    assert "path=read_back" in second.headers["x-neuron-pd-turn"]
    cold = {**body, "prompt": longer, "cache_salt": uuid4().hex}
    reference = cluster.http.post(url, json=cold, headers={"X-Neuron-PD-Reuse": "off"})
    assert second.json()["choices"][0]["text"] == reference.json()["choices"][0]["text"]


def test_a_stream_says_what_the_whole_reply_says_and_leaks_nothing(cluster: Cluster) -> None:
    messages = [user(500, 1500)]
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    with cluster.http.stream("POST", f"{cluster.proxy}/v1/chat/completions", json={**body, "stream": True}) as stream:
        raw = "".join(stream.iter_text())
    assert raw.rstrip().endswith("data: [DONE]")
    assert "kv_transfer_params" not in raw
    assert "remote_host" not in raw
    whole = cluster.chat(messages)
    assert "kv_transfer_params" not in whole.response.text
    assert whole.text == cluster.cold(messages)


def test_a_prompt_that_is_too_long_is_the_engines_400_and_leaves_nothing(cluster: Cluster) -> None:
    response = cluster.chat([user(0, 25000)], conversation_id=uuid4().hex).response
    assert response.status_code == 400
    assert str(LENGTH) in response.text
    assert cluster.settled()["kv_blocks_used"] == 0


def test_ready_models_and_health(cluster: Cluster) -> None:
    ready = cluster.http.get(f"{cluster.proxy}/ready")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert cluster.http.get(f"{cluster.proxy}/health").status_code == 200
    models = cluster.http.get(f"{cluster.proxy}/v1/models").json()["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [("tiny", LENGTH)]


def test_the_control_token_guards_the_engines(cluster: Cluster) -> None:
    for headers in ({}, {"x-neuron-pd-token": "wrong"}):
        response = cluster.http.get(f"{cluster.decode}/neuron_pd/v1/stats", headers=headers)
        assert response.status_code == 401
    assert TOKEN not in "".join(path.read_text() for path in cluster.logs.glob("*.log"))
