"""Coefficients from measured points: non-negative least squares on relative errors."""

from collections import defaultdict
from collections.abc import Sequence
from math import sqrt
from statistics import fmean

from neuron_pd.core.cost import fit
from neuron_pd.plan.calibration import Point
from neuron_pd.plan.turn import COLUMNS, Account, Coefficients, Quantity, features

REWEIGHT_STEPS = 20
FEWEST_IN_GROUP = 8
SMALL_ERROR = 0.01  # relative: below it points weigh alike


def fit_points(
    points: Sequence[Point], columns: Sequence[str] = COLUMNS, weights: Sequence[float] = ()
) -> Coefficients:
    """The `columns` of the coefficients with the smallest (weighted) squares of relative errors; the others are 0."""
    weights = weights or [1.0] * len(points)
    rows, ones = [], []
    for point, weight in zip(points, weights, strict=True):
        by_name = features(point.quantity, point.turn, point.layout)
        rows.append([weight * by_name.get(name, 0.0) / point.seconds for name in columns])
        ones.append(weight)
    return Coefficients(**dict(zip(columns, fit(rows, ones), strict=True)))


def fit_robustly(points: Sequence[Point], columns: Sequence[str] = COLUMNS) -> Coefficients:
    """The coefficients with, nearly, the smallest sum of absolute relative errors: stray turns pull no harder.

    Iteratively reweighted least squares, each point's weight one over its error.
    """
    found = fit_points(points, columns)
    for _ in range(REWEIGHT_STEPS):
        errors = [abs(relative_error(point, found)) for point in points]
        found = fit_points(points, columns, [1 / sqrt(max(error, SMALL_ERROR)) for error in errors])
    return found


def relative_error(point: Point, by: Coefficients) -> float:
    """Planned over measured, less one."""
    return planned(point, by) / point.seconds - 1


def planned(point: Point, by: Coefficients) -> float:
    """Seconds that the coefficients give for a point."""
    account = Account.of(point.turn, by, point.layout)
    seconds = {
        Quantity.ACQUIRE: by.acquire,
        Quantity.TRANSFER: account.transfer,
        Quantity.PREFILL: account.prefill,
        Quantity.TTFT: account.ttft,
    }
    return seconds[point.quantity]


def errors(points: Sequence[Point], by: Coefficients) -> dict[str, float]:
    """Relative standard deviations by group; the degrees of freedom that the coefficients took are taken off.

    A group of fewer than `FEWEST_IN_GROUP` points is given that of all points: its own would be chance.
    """
    groups: dict[str, list[float]] = defaultdict(list)
    for point in points:
        groups[point.group].append(relative_error(point, by) ** 2)
    everything = [square for group in groups.values() for square in group]
    fitted = sum(1 for value in by.as_json().values() if value)
    freedom = len(points) / max(1, len(points) - fitted)
    return {
        name: sqrt(fmean(group if len(group) >= FEWEST_IN_GROUP else everything) * freedom)
        for name, group in sorted(groups.items())
    }
