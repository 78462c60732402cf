from random import Random

import pytest

from neuron_pd.bench.spread import Interval, quartiles, ratio_of_medians


def test_quartiles_are_interpolated() -> None:
    assert quartiles([4.0, 1.0, 3.0, 2.0]) == Interval(1.75, 3.25)
    assert quartiles([7.0]) == Interval(7.0, 7.0)
    assert quartiles([]) is None


def test_a_pair_that_always_differs_alike_has_no_spread() -> None:
    over = {turn: 100.0 * turn for turn in range(1, 20)}
    ratio = ratio_of_medians(over, {turn: value / 4 for turn, value in over.items()})
    assert ratio == (4.0, 4.0, 4.0)
    assert str(ratio) == "4.0× (4.0–4.0)"


def test_what_has_no_partner_is_resampled_by_itself() -> None:
    over = {turn: 100.0 * turn for turn in range(1, 20)}
    ratio = ratio_of_medians(over, {-turn: value / 4 for turn, value in over.items()})
    assert ratio is not None
    assert ratio.low < 3.5 < ratio.value == 4.0 < 4.5 < ratio.high


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    random, covered = Random(3), 0
    for _ in range(60):
        over = {n: random.lognormvariate(0.0, 0.3) * 2 for n in range(25)}
        under = {n: random.lognormvariate(0.0, 0.3) for n in range(25, 50)}
        found = ratio_of_medians(over, under)
        assert found is not None
        covered += found.low <= 2.0 <= found.high
    assert covered >= 52


@pytest.mark.parametrize(("over", "under"), [({}, {1: 1.0}), ({1: 1.0}, {}), ({1: 1.0}, {1: 0.0})])
def test_nothing_to_compare(over: dict[int, float], under: dict[int, float]) -> None:
    assert ratio_of_medians(over, under) is None
