import math
from random import Random
from statistics import fmean, median

import pytest

from neuron_pd.bench.workloads.distributions import sampler
from neuron_pd.errors import UsageError


def draws(body: dict[str, object], count: int = 4000) -> list[int]:
    random, draw = Random(7), sampler(body, "here")
    return [draw(random) for _ in range(count)]


def test_constant_and_uniform() -> None:
    assert set(draws({"distribution": "constant", "value": 500})) == {500}
    found = draws({"distribution": "uniform", "min": 120, "max": 160})
    assert (min(found), max(found)) == (120, 160)


def test_lognormal_by_its_average_has_that_average_and_the_usual_median() -> None:
    found = draws({"distribution": "lognormal", "average": 1000})
    assert fmean(found) == pytest.approx(1000, rel=0.05)
    assert median(found) == pytest.approx(850, rel=0.05)
    found = draws({"distribution": "lognormal", "mean": 5.0, "sigma": 0.5})
    assert median(found) == pytest.approx(math.exp(5.0), rel=0.05)


def test_poisson_has_its_mean_and_variance() -> None:
    found = draws({"distribution": "poisson", "alpha": 12})
    assert fmean(found) == pytest.approx(12, rel=0.05)
    assert fmean([(n - 12) ** 2 for n in found]) == pytest.approx(12, rel=0.1)


def test_zipf_falls_as_a_power() -> None:
    found = draws({"distribution": "zipf", "alpha": 3.0})
    share = [found.count(k) / len(found) for k in (1, 2, 3)]
    total = sum(k**-3.0 for k in range(1, 100_000))
    assert share == pytest.approx([1 / total, 2**-3 / total, 3**-3 / total], abs=0.02)


def test_a_maximum_cuts_the_tail() -> None:
    assert max(draws({"distribution": "lognormal", "average": 1000, "max": 1100})) == 1100
    assert max(draws({"distribution": "zipf", "alpha": 1.5, "max": 20})) == 20


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "here: distribution must be one of constant, uniform"),
        ({"distribution": "normal"}, "not 'normal'"),
        ({"distribution": "uniform", "min": 3}, "here: uniform needs 'max'"),
        ({"distribution": "uniform", "min": 3, "max": 2}, "a number that uniform cannot use"),
        ({"distribution": "zipf", "alpha": 1}, "a number that zipf cannot use"),
        ({"distribution": "constant", "value": "many"}, "a number that constant cannot use"),
        ({"distribution": "poisson", "alpha": -1}, "a number that poisson cannot use"),
    ],
)
def test_what_cannot_be_drawn_from(body: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sampler(body, "here")
