"""A calibration from bench records, and how well it predicts what it was not fitted on."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from neuron_pd.errors import UsageError
from neuron_pd.plan.calibration import Calibration
from neuron_pd.plan.fit import errors, fit_robustly, planned
from neuron_pd.plan.observe import Observation, Observations, medians
from neuron_pd.plan.turn import COLUMNS, Coefficients, Quantity

TOLD_APART = 1.5  # ratio of the most descriptors a token to the fewest
FEWEST_POINTS = 24  # more than twice as many as there are coefficients


@dataclass(frozen=True, slots=True)
class Prediction:
    """A median of several turns, measured and planned, in seconds."""

    quantity: Quantity
    leg: str
    length: int
    turns: int
    measured: float
    planned: float

    @property
    def error(self) -> float:
        """Planned over measured, less one."""
        return self.planned / self.measured - 1

    def as_json(self) -> dict[str, Any]:
        return {
            "quantity": str(self.quantity),
            "leg": self.leg,
            "length": self.length,
            "turns": self.turns,
            "measured_ms": round(1000 * self.measured, 3),
            "planned_ms": round(1000 * self.planned, 3),
            "error": round(self.error, 4),
        }


def calibrate(seen: Observations, instance: str) -> tuple[Calibration, list[Prediction]]:
    """Fit all turns; the predictions are of one half of them by the fit of the other half.

    UsageError when the turns are too few, or not of both legs and of prompts one of which is twice another.
    """
    legs, prompts = {turn.leg for turn in seen.turns}, {point.turn.prompt for point in seen.points}
    if len(legs) < 2 or len(seen.points) < FEWEST_POINTS or max(prompts) < 2 * min(prompts):
        raise UsageError(
            "a calibration needs both legs, eight turns and lengths that differ: run a longer `bench sweep`"
        )
    fitted_on, held_out = halves(seen.turns)
    half = _fit(fitted_on)
    predictions = predict(held_out, half)
    coefficients = _fit(seen.turns)
    calibration = Calibration(
        model=seen.model,
        instance=instance,
        layout=seen.layout,
        pool_tokens=seen.pool_tokens,
        coefficients=coefficients,
        decode=seen.decode,
        errors=errors(seen.points, coefficients),
        sources=_sources(seen),
        held_out={"turns": len(held_out), "fitted_on": len(fitted_on), **summary(predictions)},
    )
    return calibration, predictions


def halves(turns: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Every other turn, counted within each leg and length, so that both halves have all of them."""
    ordered = sorted(turns, key=lambda turn: (turn.leg, turn.length))
    return ordered[::2], ordered[1::2]


def predict(turns: Sequence[Observation], by: Coefficients) -> list[Prediction]:
    """The medians of `turns` from the second on, by quantity, leg and length, beside what the coefficients give."""
    return [
        Prediction(
            *group,
            turns=len(points),
            measured=median(point.seconds for point in points),
            planned=median(planned(point, by) for point in points),
        )
        for group, points in medians(turns).items()
    ]


def summary(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The median and the largest absolute error of each quantity's medians."""
    by_quantity: dict[str, Any] = {}
    for quantity in Quantity:
        found = [abs(each.error) for each in predictions if each.quantity is quantity]
        if found:
            by_quantity[quantity] = {"median_error": round(median(found), 4), "largest_error": round(max(found), 4)}
    return by_quantity


def _fit(turns: Sequence[Observation]) -> Coefficients:
    """A descriptor's cost can be told from a byte's only where reads of as many bytes had different numbers of them."""
    points = [point for turn in turns for point in turn.points]
    densities = [point.layout.descriptors_per_token for point in points if point.quantity is Quantity.TRANSFER]
    told_apart = bool(densities) and 0 < TOLD_APART * min(densities) < max(densities)
    return fit_robustly(points, [name for name in COLUMNS if told_apart or name != "per_descriptor"])


def _sources(seen: Observations) -> dict[str, str]:
    lengths = sorted({turn.length for turn in seen.turns})
    how = f"{len(seen.turns)} turns at {', '.join(map(str, lengths))} tokens: {'; '.join(seen.commands)}"
    return {
        "coefficients": f"fitted to acquire, transfer, prefill and TTFT of {how}",
        "decode": "fitted to the time a token of the same replies",
        "bytes_per_token": "bytes read back over tokens reused, the median",
        "pool_tokens": "KV blocks of the decode engine, as it says itself",
        "errors": "relative standard deviation of single turns around the fit",
    }
