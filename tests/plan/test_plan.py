from dataclasses import replace

import pytest

from neuron_pd.core.decision import Path, Prompt
from neuron_pd.plan.plan import Conversation, Load, break_even, decide, plan
from neuron_pd.plan.turn import Turn

from .truth import TRUTH, calibration

BY = calibration()


def test_a_turn_has_the_replies_and_questions_before_it_in_its_prompt() -> None:
    talk = Conversation(user=100, reply=50, turn=3)
    assert (talk.prompt(1000), talk.history(1000)) == (1300, 1200)
    assert Conversation(turn=1).history(1000) == 0


def test_a_row_is_the_account_of_its_turn() -> None:
    (row,) = plan(BY, [4096], Conversation(user=150, reply=32)).rows
    prompt, held = 4096 + 182, (4096 + 32) // 128 * 128
    assert row.on.turn == Turn(prompt, held, held=held)
    assert row.off.ttft_ms == pytest.approx(1000 * BY.account(Turn(prompt, held=held)).ttft)
    assert row.on.ttft_ms == pytest.approx(1000 * BY.account(Turn(prompt, held, held=held)).ttft)
    assert row.local.turn.local == 4096
    assert row.speedup == pytest.approx(row.off.ttft_ms / row.on.ttft_ms)
    assert (row.on.low, row.on.high) == (pytest.approx(0.8 * row.on.ttft_ms), pytest.approx(1.2 * row.on.ttft_ms))


def test_the_parts_of_a_row_add_up() -> None:
    (row,) = (each.as_json() for each in plan(BY, [4096], Conversation(), Load(rate=0.2)).rows)
    for leg in ("off", "on"):
        transfer = row["transfer_ms_on"] if leg == "on" else 0
        parts = row[f"compute_ms_{leg}"] + transfer + row[f"handover_ms_{leg}"] + row[f"queue_ms_{leg}"]
        assert parts == pytest.approx(row[f"ttft_ms_{leg}"])


def test_a_first_turn_reuses_nothing() -> None:
    (row,) = plan(BY, [4096], Conversation(turn=1)).rows
    assert row.on.turn.reused == 0
    assert row.speedup == pytest.approx(1)


def test_a_prefix_below_the_threshold_is_computed() -> None:
    (row,) = plan(BY, [1024], Conversation(), threshold=100_000).rows
    assert row.on.turn.reused == 0


def test_auto_takes_the_cheaper_way_on_both_sides_of_the_break_even() -> None:
    slow = calibration(coefficients=replace(TRUTH, read_latency=0.3))
    threshold = break_even(slow, user=150)
    assert threshold is not None
    assert threshold % 128 == 0
    below = threshold - 128
    assert decide(slow, Prompt(threshold + 150, threshold), "auto") is Path.READ_BACK
    assert decide(slow, Prompt(below + 150, below), "auto") is Path.RECOMPUTE


def test_a_link_slower_than_the_engine_has_no_break_even() -> None:
    crawling = calibration(coefficients=replace(TRUTH, per_byte=1e-6, prefill_per_pair=0.0))
    planned = plan(crawling, [1024], Conversation(), threshold="auto")
    assert planned.break_even is None
    assert planned.rows[0].on.turn.reused == 0


def test_the_break_even_lies_within_its_band() -> None:
    planned = plan(calibration(coefficients=replace(TRUTH, read_latency=0.3)), [1024], Conversation())
    low, high = planned.break_even_range
    assert low < planned.break_even < high


def test_load_waits_more_without_reuse_and_an_overload_has_no_ttft() -> None:
    (row,) = plan(BY, [4096], Conversation(), Load(rate=0.4)).rows
    assert row.off.queue_ms > row.on.queue_ms > 0
    (row,) = plan(BY, [4096], Conversation(), Load(rate=2.0)).rows
    assert row.off.ttft_ms is None
    assert row.on.ttft_ms is not None
    assert row.speedup is None


def test_a_closed_load_waits_less_the_longer_people_think() -> None:
    waits = [
        plan(BY, [4096], Conversation(), Load(concurrency=8, think=think)).rows[0].off.queue_ms
        for think in (0, 10, 100)
    ]
    assert waits[0] > waits[1] > waits[2] > 0


def test_a_pool_of_unknown_size_retains_nothing_that_can_be_said() -> None:
    assert plan(calibration(pool_tokens=0), [1024], Conversation()).retention is None
    assert plan(calibration(pool_tokens=0), [1024], Conversation(), pool_tokens=10**6).retention is not None


def test_a_direct_turn_is_taken_where_d_may_prefill_and_has_little_else_to_do() -> None:
    assert decide(BY, Prompt(4106, 4096), 64, direct=True) is Path.DIRECT
    assert decide(BY, Prompt(4106, 4096), 64, others=100, direct=True) is Path.READ_BACK
