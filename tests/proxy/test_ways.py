"""Estimates and decisions about the ways to serve a turn."""

from dataclasses import replace

import pytest

from neuron_pd.core.transfer import TurnReport
from neuron_pd.proxy.ways import Direct, Meters, Offered, Ways


def report(prompt: int, reused: int = 0, local: int = 0) -> TurnReport:
    path = "read_back" if reused else "recompute"
    return TurnReport(path, "verified", prompt, reused, reused, reused, local)


def test_tokens_of_a_body_follow_what_p_counts() -> None:
    ways = Ways()
    assert ways.tokens(4000) == 1000
    for _ in range(50):
        ways.prefilled(Meters(), report(2000), 4000, 1.0)
    assert ways.tokens(4000) == 2000
    assert ways.tokens(0) == 1


def test_reading_counts_as_much_as_computing_until_it_was_measured() -> None:
    ways, meters = Ways(), Meters()
    assert ways.read_share == 1.0
    ways.prefilled(meters, report(1000), 4000, 1.0)
    assert ways.read_share == 1.0
    ways.prefilled(meters, report(1000, reused=800), 4000, 0.4)  # 0.2 s of it computed 200 tokens
    assert ways.read_share == pytest.approx(0.2 / 800 / 1e-3)


def test_what_p_says_of_its_read_goes_before_what_is_left_of_the_leg() -> None:
    ways, meters = Ways(), Meters()
    ways.prefilled(meters, report(1000), 4000, 1.0)
    ways.prefilled(meters, replace(report(1000, reused=800), read_ms=40.0), 4000, 0.9)
    assert ways.read_share == pytest.approx(0.04 / 800 / 1e-3)


def test_a_report_of_nothing_teaches_nothing() -> None:
    ways, meters = Ways(Direct.AUTO), Meters()
    ways.prefilled(meters, report(0), 4000, 1.0)
    assert (ways.tokens(4000), len(meters.prefill)) == (1000, 0)


def measured() -> Meters:
    meters = Meters()
    for tokens in (500, 1000, 2000, 4000, 8000):
        meters.prefill.computed(tokens, 0, 0.05 + tokens * 1e-4)
    return meters


def test_auto_waits_for_measurements() -> None:
    turn = Offered(held=8000, new=50, local=0, others=0)
    assert not Ways(Direct.AUTO).serve_directly(Meters(), Meters(), turn)
    assert Ways(Direct.ALWAYS).serve_directly(Meters(), Meters(), turn)


def test_auto_weighs_what_is_new_and_who_waits() -> None:
    """P computes at 10,000 tokens a second, and reading 8,000 tokens takes 0.1 s."""
    ways, prefill, decode = Ways(Direct.AUTO), measured(), Meters()
    for reused in (4000, 8000, 8000, 8000):
        prefill.transfer.read(reused, reused / 80_000)
    assert ways.serve_directly(prefill, decode, Offered(8000, 50, 0, 0))
    assert ways.serve_directly(prefill, decode, Offered(8000, 50, 0, 1))
    assert not ways.serve_directly(prefill, decode, Offered(8000, 50, 0, 20))
    # D was measured too, and is ten times slower.
    for new in (50, 100, 200, 400):
        ways.served(decode, Offered(0, new, 0, 0), 0.5 + new * 1e-3)
    assert not ways.serve_directly(prefill, decode, Offered(8000, 50, 0, 0))


def test_auto_counts_what_waits_at_p() -> None:
    ways, prefill, decode = Ways(Direct.AUTO), measured(), Meters()
    for tokens in (50, 100, 200, 400):
        ways.served(decode, Offered(0, tokens, 0, 0), 0.5 + tokens * 1e-3)
    turn = Offered(8000, 50, 0, 0)
    assert not ways.serve_directly(prefill, decode, turn)
    assert ways.serve_directly(prefill, decode, replace(turn, queued=20_000))


def test_a_p_that_still_holds_the_prefix_need_not_read() -> None:
    ways, prefill, decode = Ways(Direct.AUTO), measured(), Meters()
    for tokens in (50, 100, 200, 400):
        ways.served(decode, Offered(0, tokens, 0, 0), 0.1 + tokens * 1e-4)
    for _ in range(4):
        prefill.transfer.read(8000, 1.0)
    assert ways.serve_directly(prefill, decode, Offered(8000, 50, 0, 0))
    assert not ways.serve_directly(prefill, decode, Offered(8000, 50, 8000, 0))
