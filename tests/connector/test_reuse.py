"""Claims, the choice of path and its measurements on P, on vLLM's real scheduler; only the worker is played."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

from neuron_pd.connector.side_channel import Peer
from neuron_pd.core.cost import PrefillCost, TransferCost, TransferMeter

pytestmark = pytest.mark.vllm

PROMPT = range(100, 196)  # six blocks
Make = Callable[..., Any]


def acquire(decode: Any, handle: str) -> dict[str, Any]:
    lease: dict[str, Any] = decode.control("acquire", handle)["kv_transfer_params"]
    return lease


def turn(prefill: Any, name: str = "p") -> dict[str, Any]:
    report: dict[str, Any] = prefill.run(name)["neuron_pd_turn"]
    return report


def image(content: str, offset: int = 20) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(None, "image", content, PlaceholderRange(offset=offset, length=8), content)


# Claims


def test_a_turn_waits_for_d_s_answer_and_others_do_not(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT)
    asked: Future[Any] = Future()
    claimed = prefill.client.claim
    prefill.client.claim = lambda *args: asked
    lease = acquire(decode, "h")
    prefill.add("p", [*history, 1], lease)
    prefill.add("other", range(300, 340), {"do_remote_decode": True})
    prefill.step()
    assert not prefill.metadata.reqs_to_recv
    assert "other" in prefill.finished
    asked.set_result(
        claimed(Peer(lease["remote_host"], lease["remote_port"]), lease["remote_request_id"], "x").result()
    )
    prefill.step()
    assert list(prefill.metadata.reqs_to_recv) == ["p"]


def test_the_deadline_that_the_worker_keeps_is_d_s_own(engine: Make) -> None:
    decode, prefill = engine("decode", read_lease_seconds=60), engine("prefill")
    history = decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    lease["remote_blocks_expiry_time"] = 1.0
    prefill.add("p", [*history, 1], lease)
    prefill.step()
    (meta,) = prefill.metadata.reqs_to_recv.values()
    assert meta.remote.blocks_expiry_time == next(iter(decode.connector.retention.leases._open.values())).deadline


def test_a_claim_that_waits_in_the_queue_is_prolonged(engine: Make) -> None:
    decode, prefill = engine("decode", read_lease_seconds=5), engine("prefill", kv_blocks=8)
    history = decode.turn("h", PROMPT)
    prefill.add("busy", range(300, 396), {"do_remote_decode": True}, max_tokens=50)
    prefill.step()
    prefill.add("p", [*history, 1], acquire(decode, "h"))  # no blocks are free for it
    for _ in range(3):
        prefill.step()
    assert [verb for verb, _ in prefill.client.asked] == ["claim"] * len(prefill.client.asked)
    assert len(prefill.client.asked) > 2


def test_a_d_that_restarted_has_nothing_to_read(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    again = engine("decode")  # the same engine id, at the same address
    lease["remote_port"] = again.connector.side_channel_port
    prefill.add("p", [*history, 1], lease)
    assert turn(prefill)["reason"] == "lease_gone"


def test_two_prefill_engines_that_are_given_one_lease_read_it_once(engine: Make) -> None:
    decode = engine("decode")
    history = decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    one, two = engine("prefill", engine_id="p1"), engine("prefill", engine_id="p2")
    one.add("p", [*history, 1], dict(lease))
    two.add("p", [*history, 1], dict(lease))
    one.step()
    assert list(one.metadata.reqs_to_recv) == ["p"]
    assert turn(two)["reason"] == "lease_taken"
    decode.step()
    assert decode.metadata.neuron_pd_given_back == []  # what the second gave up is still the first's


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_turn_aborted_before_it_reads_gives_the_lease_back(engine: Make, scheduled: bool) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    prefill.add("p", [*history, 1], dict(lease))
    if scheduled:
        prefill.step()
    prefill.abort("p")
    decode.step()
    # A read that is under way ends by its own notification.
    assert decode.metadata.neuron_pd_given_back == ([] if scheduled else [lease["remote_request_id"]])


def test_a_lease_under_a_reader_is_not_released_by_the_router(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT)
    lease = acquire(decode, "h")
    prefill.add("p", [*history, 1], dict(lease))
    assert decode.control("release", lease["remote_request_id"]) == 0
    assert decode.control("release", "h") == 0
    prefill.step()
    assert list(prefill.metadata.reqs_to_recv) == ["p"]


# Unverified


def test_an_unverified_handle_is_read_where_that_is_allowed(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill", unverified="allow", kv_recompute_threshold=1)
    history = decode.turn("h", PROMPT)
    lease = {name: value for name, value in acquire(decode, "h").items() if name != "neuron_pd_fingerprint"}
    prefill.add("p", [*history[:40], 1], lease)
    prefill.step()
    (meta,) = prefill.metadata.reqs_to_recv.values()
    assert len(meta.remote.block_ids[0]) == 2  # the first ones, and no more than the prompt is long


# What is not text


def test_the_same_images_are_reused(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    history = decode.turn("h", PROMPT, images=[image("cat")])
    prefill.add("p", [*history, 1], acquire(decode, "h"), images=[image("cat"), image("dog", offset=97)])
    prefill.step()
    prefill.step(finished_recving={"p"})
    assert turn(prefill)["reused"] == 96


def test_another_image_ends_the_common_prefix_where_it_stands(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill", kv_recompute_threshold=0)
    history = decode.turn("h", PROMPT, images=[image("cat", offset=20)])
    prefill.add("p", [*history, 1], acquire(decode, "h"), images=[image("dog", offset=20)])
    prefill.step()
    prefill.step(finished_recving={"p"})
    assert turn(prefill)["verified"] == 16


# The choice


def measured(prefill: Any, prompt_cost: PrefillCost, read_cost: TransferCost) -> None:
    """As after many turns that took as long as the costs say."""
    meter = prefill.connector.reuse.peers["decode-engine"] = TransferMeter()
    for n in range(1, 20):
        prefill.connector.reuse.prefill.computed(n * 50, 0, prompt_cost.seconds(n * 50))
        meter.read(n * 10_000, read_cost.seconds(n * 10_000))


FAST, SLOW = TransferCost(1e-4, 1e-10), TransferCost(1e-4, 1e-3)


@pytest.mark.parametrize(
    ("read_cost", "path", "reason"), [(FAST, "read_back", "verified"), (SLOW, "recompute", "cost")]
)
def test_auto_takes_the_cheaper_path(engine: Make, read_cost: TransferCost, path: str, reason: str) -> None:
    decode, prefill = engine("decode"), engine("prefill", kv_recompute_threshold="auto")
    measured(prefill, PrefillCost(0.001, 1e-3), read_cost)
    prefill.connector.reuse._last_read["decode-engine"] = float("inf")
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history, 1], acquire(decode, "h"))
    prefill.step()
    if path == "read_back":
        prefill.step(finished_recving={"p"})
    report = turn(prefill)
    assert (report["path"], report["reason"]) == (path, reason)
    assert report["expected_ms"] > 0
    assert prefill.stats()["expected_error_seconds_count"] == 1


def test_auto_measures_again_what_it_has_not_seen_for_long(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill", kv_recompute_threshold="auto")
    measured(prefill, PrefillCost(0.001, 1e-3), SLOW)
    history = decode.turn("h", PROMPT)
    prefill.add("p", [*history, 1], acquire(decode, "h"))
    prefill.step()
    assert list(prefill.metadata.reqs_to_recv) == ["p"]


def test_auto_goes_by_the_threshold_until_it_has_measured(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill", kv_recompute_threshold="auto")
    history = decode.turn("h", range(100, 148))  # 48 tokens: fewer than 64
    prefill.add("p", [*history, 1], acquire(decode, "h"))
    assert turn(prefill)["reason"] == "below_threshold"
    assert prefill.control("info")["kv_recompute_threshold"] == "auto"


def test_what_was_read_and_computed_is_measured(engine: Make) -> None:
    decode, prefill = engine("decode"), engine("prefill")
    for n in range(6):
        history = decode.turn(f"h{n}", range(1000 * n, 1000 * n + 96))
        prefill.add(f"p{n}", [*history, 1], acquire(decode, f"h{n}"))
        prefill.step()
        prefill.step(finished_recving={f"p{n}"})
        prefill.run(f"p{n}")
    assert len(prefill.connector.reuse.prefill) == 6
    assert len(prefill.connector.reuse.peers["decode-engine"]) == 5  # all but the first, which pays for the handshake
    stats = prefill.stats()
    assert stats["read_back_bytes_sum"] == 6 * 96 * 2 * 32 * 4  # keys and values of one head of 32 floats
    assert (stats["tokens_reused"], stats["tokens_offered"]) == (6 * 96, 6 * 96)
