"""`neuron-pd plan`: what reuse brings, from a calibration; calibrations from bench records; a simulation at scale."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from neuron_pd.cli.calibrations import ABOVE_0, COUNT, FILE, SECONDS, chosen, threshold, which_calibration
from neuron_pd.cli.simulate import simulate
from neuron_pd.cli.values import TokenCount, TokenCounts
from neuron_pd.errors import UsageError


@click.group("plan", invoke_without_command=True)
@which_calibration
@click.option(
    "--prompt", "lengths", type=TokenCounts(), default="2k,4k,8k,16k,24k", show_default=True, help="First prompts."
)
@click.option("--user", type=COUNT, default=150, show_default=True, help="Tokens of each later question.")
@click.option("--reply", type=COUNT, default=300, show_default=True, help="Tokens of each reply.")
@click.option("--turn", type=COUNT, default=2, show_default=True, help="The turn that is planned.")
@click.option("--rate", type=SECONDS, help="Turns a second that arrive at random; an idle pair if not given.")
@click.option("--concurrency", type=COUNT, help="Conversations at once, in place of a rate.")
@click.option(
    "--think", type=SECONDS, default=0.0, show_default=True, help="Seconds between turns, with --concurrency."
)
@click.option("--prefill", type=COUNT, default=1, show_default=True, help="Prefill engines.")
@click.option("--decode", type=COUNT, default=1, show_default=True, help="Decode engines.")
@click.option("--threshold", callback=threshold, default="64", show_default=True, help="kv_recompute_threshold.")
@click.option(
    "--pool-tokens", type=TokenCount(), help="Tokens that D's KV cache holds; the calibration's if not given."
)
@click.option("--ttl", type=ABOVE_0, default=480.0, show_default=True, help="Seconds of a pin.")
@click.option("--gbps", type=ABOVE_0, help="Gigabits a second between P and D, where that is the bottleneck.")
@click.option("--block-size", type=COUNT, help="Tokens of a KV block; the calibration's if not given.")
@click.option("--sources", is_flag=True, help="Also say where each part of the calibration comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON instead of a table.")
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Plan the TTFT of a turn with and without reuse, the break-even threshold, and what D can keep.

    A conversation begins with a prompt of some length; the planned turn has the replies and questions before it in its
    prompt as well.
    """
    if context.invoked_subcommand is None:
        _plan(**options)
    elif given := [name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]:
        raise UsageError(f"options of {context.invoked_subcommand} follow its name: move {', '.join(given)} there")


def _plan(
    model: str | None,
    instance: str | None,
    calibration: Path | None,
    gbps: float | None,
    block_size: int | None,
    sources: bool,
    as_json: bool,
    **sizes: Any,
) -> None:
    from neuron_pd.plan.plan import Conversation, Load, plan
    from neuron_pd.plan.text import notes, plan_table, source_lines

    if sizes["rate"] is not None and sizes["concurrency"] is not None:
        raise UsageError("say --rate or --concurrency, not both")
    by = chosen(model, instance, calibration)
    if gbps is not None:
        by = by.over(gbps)
    if block_size is not None:
        by = replace(by, layout=replace(by.layout, block_size=block_size))
    conversation = Conversation(sizes["user"], sizes["reply"], sizes["turn"])
    load = Load(**{name: sizes[name] for name in ("rate", "concurrency", "think", "prefill", "decode")})
    planned = plan(by, sizes["lengths"], conversation, load, sizes["threshold"], sizes["pool_tokens"], sizes["ttl"])
    if as_json:
        click.echo(json.dumps(planned.as_json(), indent=2))
        return
    Console().print(plan_table(planned))
    for line in [*notes(planned), *(source_lines(by) if sources else ())]:
        click.echo(line)


@command.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--instance", help="What to call the machines; the engines' accelerator if not given.")
@click.option("--out", type=FILE, help="Where to write the calibration; DIR/calibration.json if not given.")
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Records of another run, whose medians the calibration is to predict.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the predictions as JSON instead of a table.")
def calibrate(folder: Path, instance: str | None, out: Path | None, against: Path | None, as_json: bool) -> None:
    """Fit a calibration to the bench records (*.jsonl) in DIR; say how well it predicts what it was not fitted on."""
    from neuron_pd.plan import calibrate as fitting
    from neuron_pd.plan.calibration import write
    from neuron_pd.plan.observe import observe, runs_in
    from neuron_pd.plan.text import prediction_line, prediction_table

    seen = observe(runs_in(folder))
    if not (instance or seen.accelerator):
        raise UsageError("the records do not say what they ran on: name it with --instance")
    calibration, half = fitting.calibrate(seen, instance or seen.accelerator)
    predictions = {"the half that it was not fitted on": half}
    if against is not None:
        other = observe(runs_in(against))
        predictions["another run"] = fitting.predict(other.turns, calibration.coefficients)
    path = out or folder / "calibration.json"
    write(calibration, path)
    if as_json:
        found = {title: [each.as_json() for each in rows] for title, rows in predictions.items()}
        click.echo(json.dumps({"calibration": str(path), "predictions": found}, indent=2))
    else:
        for title, rows in predictions.items():
            Console().print(prediction_table(rows, f"Medians of {title}, milliseconds"))
            click.echo(prediction_line(fitting.summary(rows)))
        Console(stderr=True).print(f"calibration: {path}", highlight=False, markup=False, soft_wrap=True)


command.add_command(simulate)
