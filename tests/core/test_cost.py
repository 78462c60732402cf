import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.core.cost import FEWEST, WINDOW, PrefillCost, PrefillMeter, TransferCost, TransferMeter, fit

coefficient = st.floats(min_value=0, max_value=1e-2)


def test_prefill_counts_each_pair_of_tokens_once():
    cost = PrefillCost(fixed=0, per_token=0, per_pair=1)
    whole = cost.seconds(100)
    assert cost.seconds(60) + cost.seconds(40, context=60) == pytest.approx(whole)


def test_nothing_to_do_costs_nothing():
    assert PrefillCost(1, 1, 1).seconds(0, context=500) == 0
    assert TransferCost(1, 1).seconds(0) == 0


def test_a_meter_says_nothing_before_it_has_seen_enough():
    meter = TransferMeter()
    for n in range(FEWEST - 1):
        meter.read(1000 * (n + 1), 0.1)
    assert meter.cost is None
    meter.read(9000, 0.1)
    assert meter.cost is not None


@given(coefficient, coefficient, st.floats(min_value=0, max_value=1e-5))
def test_a_prefill_meter_finds_the_cost_that_made_its_observations(fixed, per_token, per_pair):
    truth = PrefillCost(fixed, per_token, per_pair)
    meter = PrefillMeter()
    for new, context in ((64, 0), (128, 900), (512, 0), (1000, 3000), (2048, 100), (4096, 0)):
        meter.computed(new, context, truth.seconds(new, context))
    for new, context in ((300, 50), (1500, 1500)):
        assert meter.cost.seconds(new, context) == pytest.approx(truth.seconds(new, context), rel=1e-3, abs=1e-6)


def test_a_transfer_meter_follows_a_link_that_became_slower():
    meter = TransferMeter()
    sizes = [10**6 * n for n in range(1, 11)]
    for nbytes in sizes * (WINDOW // len(sizes) + 1):
        meter.read(nbytes, 0.001 + nbytes / 10e9)
    assert meter.cost.seconds(10**7) == pytest.approx(0.002, rel=0.01)
    for nbytes in sizes * (WINDOW // len(sizes) + 1):
        meter.read(nbytes, 0.001 + nbytes / 1e9)
    assert meter.cost.seconds(10**7) == pytest.approx(0.011, rel=0.01)


def test_a_link_that_is_fast_again_is_known_by_its_first_read():
    meter = TransferMeter()
    for _ in range(WINDOW):
        meter.read(10**8, 10.0)
    assert meter.cost is not None  # reading is expected to take as long
    meter.read(10**8, 0.1)
    assert meter.cost is None  # it has to be read from again
    for _ in range(FEWEST - 1):
        meter.read(10**8, 0.1)
    assert meter.cost.seconds(10**8) == pytest.approx(0.1)


def test_a_link_that_became_slower_is_known_after_a_few_reads():
    meter = TransferMeter()
    for _ in range(WINDOW):
        meter.read(10**8, 0.1)
    for _ in range(4):
        meter.read(10**8, 10.0)
    assert meter.cost.seconds(10**8) > 5.0


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 100)), min_size=1, max_size=WINDOW))
def test_coefficients_are_never_negative_whatever_was_seen(observations):
    found = fit([(1.0, n) for n, _ in observations], [seconds for _, seconds in observations])
    assert all(value >= 0 for value in found)


def test_noise_averages_out():
    noise = random.Random(7)
    truth, meter = TransferCost(0.002, 1e-9), TransferMeter()
    for _ in range(WINDOW):
        nbytes = noise.randrange(1, 100) * 10**6
        meter.read(nbytes, truth.seconds(nbytes) * noise.uniform(0.8, 1.2))
    assert meter.cost.seconds(5 * 10**7) == pytest.approx(truth.seconds(5 * 10**7), rel=0.1)
