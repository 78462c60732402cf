from random import Random

import pytest

from neuron_pd.plan.calibration import Point
from neuron_pd.plan.fit import errors, fit_points, fit_robustly, planned, relative_error
from neuron_pd.plan.turn import COLUMNS, Coefficients, Quantity, Turn

from .truth import LAYOUT, TRUTH

TURNS = [Turn(n + 150, reused, held=n) for n in range(512, 8192, 512) for reused in (0, n)]

AT_ONE_BLOCK_SIZE = [name for name in COLUMNS if name != "per_descriptor"]


def points(noise: float = 0.0, strays: int = 0) -> list[Point]:
    draw = Random(3)
    made = []
    for turn in TURNS:
        for quantity in Quantity if turn.reused else (Quantity.PREFILL, Quantity.TTFT):
            exact = planned(Point(quantity, turn, 1.0, LAYOUT), TRUTH)
            made.append(Point(quantity, turn, exact * draw.uniform(1 - noise, 1 + noise), LAYOUT))
    for index in range(0, strays * 7, 7):
        made[index] = Point(made[index].quantity, made[index].turn, made[index].seconds * 3, LAYOUT)
    return made


@pytest.mark.parametrize("fit", [fit_points, fit_robustly])
def test_exact_points_give_the_coefficients_that_made_them(fit) -> None:
    found = fit(points(), AT_ONE_BLOCK_SIZE)
    for name in AT_ONE_BLOCK_SIZE:
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.02), name


def test_noise_averages_out() -> None:
    found = fit_points(points(noise=0.1))
    assert all(abs(relative_error(point, found)) < 0.08 for point in points())


def test_stray_points_pull_a_robust_fit_less() -> None:
    seen, truth = points(noise=0.02, strays=8), points()

    def worst(found: Coefficients) -> float:
        return max(abs(relative_error(point, found)) for point in truth)

    assert worst(fit_robustly(seen)) < 0.1 < worst(fit_points(seen))


def test_columns_that_are_left_out_are_0() -> None:
    found = fit_points(points(), ("prefill_per_token", "per_byte"))
    assert {name for name, value in found.as_json().items() if value} == {"prefill_per_token", "per_byte"}


def test_errors_are_those_of_the_noise() -> None:
    seen = points(noise=0.1)
    found = errors(seen, fit_points(seen))
    assert set(found) == {"acquire on", "prefill off", "prefill on", "transfer on", "ttft off", "ttft on"}
    assert all(0.03 < error < 0.1 for error in found.values())  # uniform ±10 % has a standard deviation of 5.8 %


def test_a_group_of_few_points_is_given_the_errors_of_all() -> None:
    few = [point for point in points(noise=0.1) if point.turn.prompt < 1200]
    found = errors(few, TRUTH)
    assert len(set(found.values())) == 1
