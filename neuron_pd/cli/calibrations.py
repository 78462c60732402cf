"""Options that choose a calibration, and the types that the planning commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.plan.calibration import Calibration

FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0)
ABOVE_0 = click.FloatRange(min=0, min_open=True)


def which_calibration(command: Any) -> Any:
    """The options that choose a calibration."""
    for option in (
        click.option("--calibration", type=FILE, help="A file of `plan calibrate`, in place of a shipped one."),
        click.option("--instance", help="Instance type; the model's only one if not given."),
        click.option("--model", help="Model, by its full name or the part after the slash."),
    ):
        command = option(command)
    return command


def chosen(model: str | None, instance: str | None, calibration: Path | None) -> "Calibration":
    from neuron_pd.plan.calibration import find, read, shipped

    if calibration is not None:
        return read(calibration)
    if model is None:
        there = ", ".join(f"{each.model} on {each.instance}" for each in shipped())
        raise UsageError(f"say --model or --calibration FILE: calibrated are {there}")
    return find(model, instance)


def threshold(context: click.Context, parameter: click.Parameter, text: str) -> int | str:
    """`kv_recompute_threshold`: tokens, or "auto"."""
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise click.BadParameter(f"{text!r} is neither a number of tokens nor auto", context, parameter)
