"""The scheduler side of a staging buffer, on vLLM's real scheduler: what a peer is told are slots, never blocks."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

Make = Callable[..., Any]
PROMPT = range(100, 196)  # 6 blocks of 16
READY = {"do_remote_decode": True, "do_remote_prefill": False}
BLOCK_BYTES = 16 * 2 * 32 * 4  # tokens, K and V, head size, float32
HAND_OFF = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "p",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 96,
}


@pytest.fixture
def staged(engine: Make) -> Make:
    """Make an engine with a staging buffer of so many slots."""
    return lambda role, slots=16, **settings: engine(
        role, buffer="staged", staging_bytes=slots * BLOCK_BYTES, **settings
    )


def free(made: Any) -> float:
    slots: float = made.stats()["staging_slots_free"]
    return slots


def acquired(decode: Any, handle: str) -> dict[str, Any]:
    """A lease whose blocks the worker has copied."""
    answer = decode.control("acquire", handle)
    assert isinstance(answer, Future)
    assert not answer.done()
    decode.step()
    (name,) = decode.metadata.neuron_pd_leases
    decode.step(finished_recving={name})
    lease: dict[str, Any] = answer.result(0)["kv_transfer_params"]
    return lease


def test_a_lease_is_answered_when_its_blocks_are_in_their_slots(staged: Make) -> None:
    decode = staged("decode")
    decode.turn("h", PROMPT)
    answer = decode.control("acquire", "h")
    decode.step()
    ((name, (blocks, slots)),) = decode.metadata.neuron_pd_leases.items()
    assert (len(blocks[0]), slots) == (6, [[0, 1, 2, 3, 4, 5]])
    assert not answer.done()  # the worker has not said so
    decode.step(finished_recving={name})
    lease = answer.result(0)["kv_transfer_params"]
    assert (lease["remote_block_ids"], lease["remote_num_tokens"]) == ([[0, 1, 2, 3, 4, 5]], 96)
    assert (free(decode), decode.stats()["pinned_blocks"]) == (10, 6)


def test_a_lease_that_ends_gives_its_slots_back(staged: Make) -> None:
    decode = staged("decode")
    decode.turn("h", PROMPT)
    lease = acquired(decode, "h")
    decode.step(finished_sending={lease["remote_request_id"]})
    assert (free(decode), decode.stats()["open_leases"]) == (16, 0)


def test_a_buffer_with_little_room_leases_the_prefix_that_fits(staged: Make) -> None:
    decode = staged("decode", slots=4)
    decode.turn("h", PROMPT)
    lease = acquired(decode, "h")
    assert (lease["remote_block_ids"], lease["remote_num_tokens"]) == ([[0, 1, 2, 3]], 64)


def test_a_full_buffer_refuses_a_lease_and_counts_it(staged: Make) -> None:
    decode = staged("decode", slots=6)
    decode.turn("h", PROMPT)
    acquired(decode, "h")
    assert decode.control("acquire", "h") == {"reason": "staging_full"}
    stats = decode.stats()
    assert (stats["acquires_staging_full"], stats["open_leases"], stats["pinned_blocks"]) == (1, 1, 6)


def test_a_prompt_is_exposed_in_the_step_that_ends_its_prefill(staged: Make) -> None:
    prefill = staged("prefill")
    prefill.add("p", [*PROMPT, 7], dict(READY))
    prefill.step()
    ((blocks, slots),) = prefill.metadata.neuron_pd_prompts
    assert (len(blocks[0]), slots) == (7, [[0, 1, 2, 3, 4, 5, 6]])
    assert prefill.metadata.neuron_pd_leases == {}  # the answer goes out after this step anyway
    answer = prefill.finished["p"]
    assert answer["remote_block_ids"] == slots
    prefill.step(finished_sending={"p"})
    assert (free(prefill), prefill.stats()["kv_blocks_used"]) == (16, 0)


def test_a_prompt_in_chunks_is_exposed_once_and_whole(staged: Make) -> None:
    prefill = staged("prefill", kv_blocks=400, slots=400)
    for start in (0, 5000):
        prefill.add(f"p{start}", range(start, start + 3000), dict(READY))  # a step takes 4,096 tokens
    prefill.step()
    assert [len(blocks[0]) for blocks, _ in prefill.metadata.neuron_pd_prompts] == [188]  # the first one
    prefill.step()
    ((blocks, _),) = prefill.metadata.neuron_pd_prompts
    assert len(blocks[0]) == len(set(blocks[0])) == 188


def test_a_prompt_without_room_is_not_handed_over(staged: Make) -> None:
    prefill = staged("prefill", slots=6)
    prefill.add("first", PROMPT, dict(READY))
    prefill.add("second", PROMPT, dict(READY))
    prefill.step()
    assert prefill.finished["first"]["remote_block_ids"] == [[0, 1, 2, 3, 4, 5]]
    answer = prefill.finished["second"]
    assert not answer.get("do_remote_prefill")
    assert "remote_block_ids" not in answer  # so the decode engine computes the prompt
    assert prefill.stats()["hand_offs_without_room"] == 1
    prefill.step(finished_sending={"first"})
    assert (free(prefill), prefill.stats()["kv_blocks_used"]) == (6, 0)


def test_an_aborted_prompt_leaves_no_slot(staged: Make) -> None:
    prefill = staged("prefill", kv_blocks=400, slots=400)
    prefill.add("whole", range(3000), dict(READY))
    prefill.add("part", range(5000, 8000), dict(READY))
    prefill.step()
    prefill.abort("part")
    prefill.step(finished_sending={"whole"})
    assert (free(prefill), prefill.stats().get("hand_offs_without_room", 0)) == (400, 0)


def test_a_read_back_lands_in_slots_of_its_own(staged: Make) -> None:
    decode, prefill = staged("decode"), staged("prefill")
    history = decode.turn("h", PROMPT, max_tokens=33)
    prefill.add("p", [*history, 7, 8, 9], acquired(decode, "h"))
    prefill.step()
    assert prefill.metadata.neuron_pd_receive == {"p": [[0, 1, 2, 3, 4, 5, 6, 7]]}
    assert free(prefill) == 8
    prefill.step(finished_recving={"p"})
    assert prefill.run("p")["neuron_pd_turn"]["reused"] == 128


def test_a_read_back_without_room_is_recomputed(staged: Make) -> None:
    decode, prefill = staged("decode"), staged("prefill", slots=10)
    history = decode.turn("h", PROMPT)
    prefill.add("before", PROMPT, dict(READY))
    prefill.step()
    prefill.add("p", [*history, 7], acquired(decode, "h"))
    turn = prefill.run("p")["neuron_pd_turn"]
    assert (turn["path"], turn["reason"], turn["verified"], turn["reused"]) == ("recompute", "staging_full", 96, 0)


def test_a_hand_off_waits_for_room(staged: Make) -> None:
    decode = staged("decode", slots=6, prefix_caching=True)
    decode.turn("h", range(300, 396))
    lease = acquired(decode, "h")
    decode.add("d", PROMPT, {**HAND_OFF, "remote_block_ids": [[1, 2, 3, 4, 5, 6]]}, max_tokens=2)
    decode.step()
    assert decode.metadata.neuron_pd_receive == {}
    decode.step(finished_sending={lease["remote_request_id"]})
    decode.step()
    assert decode.metadata.neuron_pd_receive == {"d": [[0, 1, 2, 3, 4, 5]]}
    decode.step(finished_recving={"d"})
    decode.run("d")
    assert free(decode) == 6


def test_a_hand_off_that_can_never_fit_is_computed_and_its_blocks_given_back(staged: Make) -> None:
    decode = staged("decode", slots=5)
    decode.add("d", PROMPT, {**HAND_OFF, "remote_block_ids": [[1, 2, 3, 4, 5, 6]]}, max_tokens=2)
    decode.step()
    (meta,) = decode.metadata.reqs_to_recv.values()
    assert not meta.local_block_ids  # told to notify, not to read
    decode.run("d")
    assert (decode.stats()["hand_offs_too_large"], free(decode)) == (1, 5)


def test_a_failed_read_gives_its_slots_back(staged: Make) -> None:
    decode, prefill = staged("decode"), staged("prefill")
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history, 1], acquired(decode, "h"))
    prefill.step()
    failed = set(next(iter(prefill.metadata.reqs_to_recv.values())).local_block_ids[0])
    prefill.step(finished_recving={"p"}, failed_recving={"p"}, invalid_block_ids=failed)
    assert prefill.run("p")["neuron_pd_turn"]["reason"] == "load_failed"
    prefill.step(finished_sending={"p"})
    assert free(prefill) == 16


def test_without_a_staging_buffer_nothing_of_it_is_seen(engine: Make) -> None:
    decode = engine("decode")
    decode.turn("h", PROMPT)
    assert "kv_transfer_params" in decode.control("acquire", "h")
    decode.step()
    assert (decode.metadata.neuron_pd_prompts, decode.metadata.neuron_pd_leases) == ([], {})
    assert decode.metadata.neuron_pd_receive == {}
    assert "staging_slots" not in decode.stats()
