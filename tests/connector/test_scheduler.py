"""The lease cycle and its faults on vLLM's real scheduler; only the worker is played."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

PROMPT = range(100, 196)  # six blocks
READY = {"do_remote_decode": True, "do_remote_prefill": False}
Make = Callable[..., Any]


def acquire(decode: Any, handle: str) -> dict[str, Any]:
    answer = decode.control("acquire", handle)
    assert "kv_transfer_params" in answer, answer
    lease: dict[str, Any] = answer["kv_transfer_params"]
    return lease


def read(decode: Any, lease: dict[str, Any]) -> None:
    """The worker reports that P has read."""
    decode.step(finished_sending={lease["remote_request_id"]})


# D


def ended(decode: Any, lease: dict[str, Any]) -> str:
    """How a lease ended that the worker is told to drop, and does."""
    decode.step()
    assert decode.metadata.neuron_pd_given_back == [lease["remote_request_id"]]
    before = {name: count for name, count in decode.stats().items() if name.startswith("leases_")}
    read(decode, lease)
    assert decode.stats()["kv_blocks_used"] == 0
    (how,) = [name for name, count in before.items() if decode.stats()[name] > count]
    return how.removeprefix("leases_")


def test_a_finished_turn_is_recorded_and_pins_nothing(engine: Make) -> None:
    decode = engine("decode")
    decode.turn("h", PROMPT)
    stats = decode.stats()
    assert (stats["ledger_records"], stats["kv_blocks_used"], stats["pinned_blocks"]) == (1, 0, 0)
    decode.step()  # tells the worker which requests are over
    assert not decode.scheduler.has_requests()


def test_acquire_pins_what_is_cached_and_the_read_frees_it(engine: Make) -> None:
    decode = engine("decode")
    tokens = decode.turn("h", PROMPT, max_tokens=20)
    lease = acquire(decode, "h")
    # 96 prompt tokens and 20 sampled ones, of which the last was never fed back: 115 of them, 7 whole blocks.
    assert len(tokens) == 116
    assert lease["remote_num_tokens"] == 112
    assert len(lease["remote_block_ids"][0]) == 7
    assert decode.stats()["kv_blocks_used"] == decode.stats()["pinned_blocks"] == 7
    assert decode.scheduler.has_requests()  # an idle engine keeps stepping while a lease is open
    decode.step()
    assert lease["remote_request_id"] in decode.metadata.reqs_in_batch
    assert not decode.metadata.reqs_to_send  # the worker keeps no time for it
    assert decode.scheduler.has_requests()
    read(decode, lease)
    stats = decode.stats()
    assert (stats["kv_blocks_used"], stats["open_leases"], stats["leases_read"]) == (0, 0, 1)
    assert not decode.scheduler.has_requests()


def test_two_leases_over_one_record_are_independent(engine: Make) -> None:
    decode = engine("decode")
    decode.turn("h", PROMPT)
    one, two = acquire(decode, "h"), acquire(decode, "h")
    assert one["remote_block_ids"] == two["remote_block_ids"]
    read(decode, one)
    assert decode.stats()["kv_blocks_used"] == 6
    read(decode, two)
    assert decode.stats()["kv_blocks_used"] == 0


def test_a_lease_given_back_ends_when_the_worker_has_dropped_it(engine: Make) -> None:
    decode = engine("decode")
    decode.turn("h", PROMPT)
    lease = acquire(decode, "h")["remote_request_id"]
    assert decode.control("release", lease) == 1
    assert decode.control("release", lease) == 0
    decode.step()
    assert decode.metadata.neuron_pd_given_back == [lease]
    assert decode.stats()["kv_blocks_used"] == 6
    decode.step(finished_sending={lease})
    stats = decode.stats()
    assert (stats["kv_blocks_used"], stats["leases_released"]) == (0, 1)


def test_releasing_a_handle_forgets_the_record_and_gives_its_leases_back(engine: Make) -> None:
    decode = engine("decode")
    decode.turn("h", PROMPT)
    acquire(decode, "h")
    assert decode.control("release", "h") == 1
    assert decode.control("acquire", "h") == {"reason": "unknown_handle"}


def test_a_lease_that_nobody_reads_is_reclaimed(engine: Make) -> None:
    decode = engine("decode", read_lease_seconds=0)
    decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    decode.step()
    assert decode.metadata.neuron_pd_given_back == [lease["remote_request_id"]]
    read(decode, lease)  # the worker reports what it was told to drop as it reports what was read
    stats = decode.stats()
    assert (stats["kv_blocks_used"], stats["leases_expired"]) == (0, 1)


def test_what_the_cache_lost_is_not_offered(engine: Make) -> None:
    decode = engine("decode", kv_blocks=9)  # one of them is vLLM's null block
    decode.turn("old", PROMPT)
    decode.turn("new", range(300, 364))
    lease = acquire(decode, "old")
    assert 0 < lease["remote_num_tokens"] < 96
    read(decode, lease)
    decode.turn("newer", range(600, 696))
    decode.turn("newest", range(700, 796))
    assert decode.control("acquire", "old") == {"reason": "evicted"}


def test_pinned_blocks_survive_pressure_until_they_are_read(engine: Make) -> None:
    decode = engine("decode", kv_blocks=16)
    decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    for start in (300, 400, 500):
        decode.turn(f"other-{start}", range(start, start + 96))
    pool = decode.scheduler.kv_cache_manager.block_pool
    assert all(pool.blocks[block].ref_cnt == 1 for block in lease["remote_block_ids"][0])
    read(decode, lease)
    assert decode.stats()["kv_blocks_used"] == 0


def test_an_aborted_reply_can_still_be_read_back(engine: Make) -> None:
    decode = engine("decode")
    decode.add("r", PROMPT, {"neuron_pd_handle": "h"}, max_tokens=100)
    for _ in range(5):
        decode.step()
    decode.abort("r")
    assert acquire(decode, "h")["remote_num_tokens"] == 96


def test_a_turn_that_never_ran_leaves_no_record(engine: Make) -> None:
    decode = engine("decode")
    decode.add("r", PROMPT, {"neuron_pd_handle": "h"})
    decode.abort("r")
    assert decode.control("acquire", "h") == {"reason": "unknown_handle"}
    assert decode.stats()["kv_blocks_used"] == 0


@pytest.mark.parametrize("settings", [{"prefix_caching": False}, {"bidirectional_kv_xfer": False}, {"window": 32}])
def test_an_engine_that_cannot_serve_a_read_says_so(engine: Make, settings: dict[str, Any]) -> None:
    decode = engine("decode", **settings)
    decode.turn("h", PROMPT)
    assert decode.control("acquire", "h") == {"reason": "disabled"}
    assert decode.stats()["ledger_records"] == 0


def test_hashes_finer_than_a_block_are_not_served(engine: Make) -> None:
    decode = engine("decode")
    decode.turn("h", PROMPT)
    decode.scheduler.kv_cache_manager.block_pool.hash_block_size = 8
    assert decode.control("acquire", "h") == {"reason": "disabled"}


@pytest.mark.parametrize("handle", [5, None, ["h"], {"h": 1}])
def test_a_handle_that_is_not_text_records_nothing(engine: Make, handle: object) -> None:
    decode = engine("decode")
    decode.add("r", PROMPT, {"neuron_pd_handle": handle})
    decode.run("r")
    assert decode.stats()["ledger_records"] == 0


def test_both_flags_false_pins_nothing(engine: Make) -> None:
    decode = engine("decode")
    decode.add("r", PROMPT, {"do_remote_decode": False, "do_remote_prefill": False})
    assert decode.run("r") is None
    assert decode.stats()["kv_blocks_used"] == 0


@pytest.mark.parametrize(
    "broken",
    [
        {"remote_block_ids": [1, 2]},
        {"remote_block_ids": [[1], [2]]},
        {"remote_engine_id": 7},
        {"remote_port": "x"},
        {"remote_num_tokens": "many"},
        {"neuron_pd_block_size": 8},
    ],
)
def test_a_hand_off_that_does_not_hold_together_is_computed(engine: Make, broken: dict[str, Any]) -> None:
    decode = engine("decode")
    hand_off = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2, 3, 4, 5, 6]],
        "remote_engine_id": "p",
        "remote_request_id": "r",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": 96,
        "tp_size": 1,
    }
    decode.add("r", PROMPT, {**hand_off, **broken})
    decode.run("r")
    stats = decode.stats()
    assert (stats["hand_offs_refused"], stats["kv_blocks_used"]) == (1, 0)


# P


def recv(prefill: Any) -> Any:
    """The one read that P's worker was told to do."""
    (read_meta,) = prefill.metadata.reqs_to_recv.values()
    return read_meta


def test_p_reads_the_verified_prefix_and_computes_the_rest(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT, max_tokens=33)
    request = prefill.add("p", [*history, 7, 8, 9], acquire(decode, "h"))
    prefill.step()
    assert len(recv(prefill).remote.block_ids[0]) == len(recv(prefill).local_block_ids[0]) == 8
    prefill.step(finished_recving={"p"})
    turn = prefill.run("p")["neuron_pd_turn"]
    durations = {name: turn.pop(name) for name in ("took_ms", "read_ms", "expected_ms")}
    assert durations["took_ms"] > durations["read_ms"] > 0 == durations["expected_ms"]
    assert turn == {
        "path": "read_back",
        "reason": "verified",
        "prompt": 132,
        "offered": 128,
        "verified": 128,
        "reused": 128,
        "local": 0,
    }
    assert request.num_computed_tokens >= 132


def test_an_edited_history_reads_nothing_and_ends_the_lease(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT, max_tokens=33)
    lease = acquire(decode, "h")
    prefill.add("p", [1, *history[1:]], dict(lease))
    prefill.step()
    assert not prefill.metadata.reqs_to_recv
    assert ended(decode, lease) == "released"
    turn = prefill.run("p")["neuron_pd_turn"]
    assert (turn["path"], turn["reason"], turn["verified"], turn["reused"]) == ("recompute", "mismatch", 0, 0)


@pytest.mark.parametrize("common", [16, 17, 31, 64, 95])
def test_a_true_prefix_is_reused_exactly_in_whole_blocks(engine: Make, common: int) -> None:
    decode, prefill = engine("decode"), engine("prefill", kv_recompute_threshold=1)
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history[:common], *range(900, 950)], acquire(decode, "h"))
    prefill.step()
    blocks = recv(prefill).remote.block_ids[0]
    assert len(blocks) == common // 16
    assert len(recv(prefill).local_block_ids[0]) == common // 16


def test_a_prompt_shorter_than_what_d_holds_reads_the_first_blocks(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill", kv_recompute_threshold=0)
    history = decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    first = list(lease["remote_block_ids"][0])
    prefill.add("p", history[:40], lease)
    prefill.step()
    assert list(recv(prefill).remote.block_ids[0]) == first[:2]


def test_a_prompt_that_is_held_whole_still_computes_its_last_token(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT)
    prefill.add("p", history[:96], acquire(decode, "h"))
    prefill.step()
    assert len(recv(prefill).remote.block_ids[0]) == 6
    prefill.step(finished_recving={"p"})
    assert prefill.run("p")["neuron_pd_turn"]["reused"] == 96


def test_fewer_tokens_than_the_threshold_are_computed(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill", kv_recompute_threshold=97)
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history, 1], acquire(decode, "h"))
    turn = prefill.run("p")["neuron_pd_turn"]
    assert (turn["reason"], turn["verified"], turn["reused"]) == ("below_threshold", 96, 0)


def test_what_p_holds_itself_is_not_fetched_again(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill", prefix_caching=True, kv_recompute_threshold=1)
    history = decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    prefill.add("before", history[:64], dict(READY))
    prefill.run("before")
    prefill.add("p", [*history, 1], lease)
    prefill.step()
    assert len(recv(prefill).local_block_ids[0]) == 2
    prefill.step(finished_recving={"p"})
    turn = prefill.run("p")["neuron_pd_turn"]
    assert (turn["local"], turn["reused"], turn["verified"]) == (64, 32, 96)


def test_another_token_verifies_nothing(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = engine("decode")
    monkeypatch.setenv("NEURON_PD_CONTROL_TOKEN", "another token")
    prefill = engine("prefill")
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history, 1], acquire(decode, "h"))
    assert prefill.run("p")["neuron_pd_turn"]["reason"] == "mismatch"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"remote_block_ids": [1, 2, 3]}, "malformed"),
        ({"remote_block_ids": [[1], [2]]}, "malformed"),
        ({"remote_num_tokens": -5}, "malformed"),
        ({"remote_host": None}, "malformed"),
        ({"neuron_pd_fingerprint": {"block_size": 16}}, "malformed"),
        ({"neuron_pd_fingerprint": None}, "unverified"),
        ({"neuron_pd_fingerprint": {"block_size": 32, "digests": "AAAAAAAAAAA="}}, "unsupported"),
        ({"remote_engine_id": "prefill-engine"}, "self_read"),
    ],
)
def test_a_lease_that_cannot_be_trusted_is_recomputed(engine: Make, change: dict[str, Any], reason: str) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history, 1], {**acquire(decode, "h"), **change})
    prefill.step()
    told = [told.local_block_ids for told in prefill.metadata.reqs_to_recv.values()]
    assert told == ([()] if reason == "unverified" else [])  # upstream's way to tell D that nothing is read
    turn = prefill.run("p")["neuron_pd_turn"]
    assert (turn["path"], turn["reason"], turn["reused"]) == ("recompute", reason, 0)
    assert prefill.stats()[f"turns_recompute_{reason}"] == 1


def test_a_lease_is_read_once(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    for name in ("first", "second"):
        prefill.add(name, [*history, 1], dict(lease))
    prefill.step()
    assert list(prefill.metadata.reqs_to_recv) == ["first"]
    assert prefill.run("second")["neuron_pd_turn"]["reason"] == "lease_taken"


def test_more_tokens_claimed_than_blocks_offered_reads_what_the_blocks_hold(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    lease["remote_block_ids"] = [lease["remote_block_ids"][0][:5]]
    lease["remote_num_tokens"] = 10**9
    prefill.add("p", [*history, 1], lease)
    prefill.step()
    assert len(recv(prefill).remote.block_ids[0]) == 5


def test_p_without_the_flag_computes_and_does_not_wait(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill", bidirectional_kv_xfer=False)
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history, 1], acquire(decode, "h"))
    assert prefill.run("p")["neuron_pd_turn"]["reason"] == "bidirectional_off"


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_failed_read_is_recomputed_and_never_waits(engine: Make, prefix_caching: bool) -> None:
    decode, prefill = engine("decode"), engine("prefill", prefix_caching=prefix_caching)
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history, 1], acquire(decode, "h"))
    prefill.step()
    failed = set(recv(prefill).local_block_ids[0])
    prefill.step(finished_recving={"p"}, failed_recving={"p"}, invalid_block_ids=failed)
    turn = prefill.run("p")["neuron_pd_turn"]
    assert (turn["path"], turn["reason"], turn["reused"]) == ("recompute", "load_failed", 0)


def test_a_request_preempted_after_its_read_is_recomputed(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history, 1], acquire(decode, "h"), max_tokens=4)
    prefill.step()
    prefill.step(finished_recving={"p"})
    prefill.step()
    assert prefill.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert prefill.run("p")["neuron_pd_turn"]["reason"] == "load_failed"


def test_a_hand_off_that_no_decode_engine_will_read_is_given_back(engine: Make) -> None:
    prefill = engine("prefill")
    prefill.add("p", PROMPT, dict(READY))
    answer = prefill.run("p")
    assert prefill.stats()["kv_blocks_used"] == 6
    assert prefill.control("release", answer["remote_request_id"]) == 1
    prefill.step()
    assert prefill.metadata.neuron_pd_given_back == ["p"]
    prefill.step(finished_sending={"p"})
    assert prefill.stats()["kv_blocks_used"] == 0
    assert prefill.control("release", "p") == 0


def test_what_has_been_sent_may_come_as_a_list(engine: Make) -> None:
    prefill = engine("prefill")
    prefill.add("p", PROMPT, dict(READY))
    prefill.run("p")
    prefill.step(finished_sending=["p"])  # as upstream's own suites report it
    assert prefill.stats()["kv_blocks_used"] == 0


def test_an_aborted_prefill_leaves_nothing(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history, 1], acquire(decode, "h"))
    prefill.abort("p")
    assert prefill.stats()["kv_blocks_used"] == 0
    prefill.add("q", [*history, 1], acquire(decode, "h"))
    prefill.step()
    prefill.abort("q")
    prefill.step(finished_recving={"q"})
    assert prefill.stats()["kv_blocks_used"] == 0
    assert not prefill.connector.reuse.legs


# Both


def test_info_says_what_a_router_needs(engine: Make) -> None:
    info = engine("decode").control("info")
    assert (info["role"], info["engine_id"], info["block_size"]) == ("decode", "decode-engine", 16)
    assert (info["bidirectional"], info["prefix_caching"], info["retention"]) == (True, True, "lease")
    assert info["kv_blocks"] == 63
    assert info["side_channel_host"]
    assert info["side_channel_port"] > 0


def test_the_ledger_is_bounded_by_its_setting(engine: Make) -> None:
    decode = engine("decode", ledger_bytes=2000)
    for start in range(5):
        decode.turn(f"h{start}", range(start * 100, start * 100 + 64))
    assert decode.stats()["ledger_bytes"] <= 2000
    assert 0 < decode.stats()["ledger_records"] < 5
