"""`neuron-pd plan`: what reuse brings, from a calibration; calibrations from bench records; a simulation at scale."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.console import Console

from neuron_pd.cli.tokens import TokenCount, TokenCounts
from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.plan.calibration import Calibration
    from neuron_pd.plan.simulation.workload import Cluster, Workload

FILE = click.Path(path_type=Path, dir_okay=False)
COUNT = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0)


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
@click.option(
    "--ttl", type=click.FloatRange(min=0, min_open=True), default=480.0, show_default=True, help="Of a pin, s."
)
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
    model: str | None, instance: str | None, calibration: Path | None, sources: bool, as_json: bool, **sizes: Any
) -> None:
    from neuron_pd.plan.plan import Conversation, Load, plan
    from neuron_pd.plan.text import notes, plan_table, source_lines

    if sizes["rate"] is not None and sizes["concurrency"] is not None:
        raise UsageError("say --rate or --concurrency, not both")
    by = chosen(model, instance, calibration)
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


REUSE = {"off": (False,), "on": (True,), "both": (False, True)}


@command.command()
@which_calibration
@click.option("--conversations", type=COUNT, default=1000, show_default=True)
@click.option("--turns", type=COUNT, default=10, show_default=True, help="Turns of each conversation.")
@click.option(
    "--prompt", "first", type=TokenCount(), default="4k", show_default=True, help="First prompts, on average."
)
@click.option("--spread", type=click.Choice(["constant", "exponential"]), default="constant", show_default=True)
@click.option("--user", type=COUNT, default=150, show_default=True, help="Tokens of each later question.")
@click.option("--reply", type=COUNT, default=300, show_default=True, help="Tokens of each reply.")
@click.option("--think", type=SECONDS, default=10.0, show_default=True, help="Mean pause between turns, seconds.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Conversations that begin a second, at random."
)
@click.option("--clients", type=COUNT, default=16, show_default=True, help="Conversations at once, without a rate.")
@click.option("--prefill", type=COUNT, default=1, show_default=True, help="Prefill engines.")
@click.option("--decode", type=COUNT, default=1, show_default=True, help="Decode engines.")
@click.option("--pool-tokens", type=TokenCount(), help="KV cache of each D; the calibration's if not given.")
@click.option("--prefill-pool-tokens", type=TokenCount(), help="Prefix cache of each P; it keeps nothing if not given.")
@click.option("--max-num-seqs", type=COUNT, default=256, show_default=True, help="Replies that a D streams at once.")
@click.option("--reuse", type=click.Choice(list(REUSE)), default="both", show_default=True)
@click.option("--retention", type=click.Choice(["lease", "pin"]), multiple=True, help="Repeatable.  [default: both]")
@click.option(
    "--routing",
    type=click.Choice(["sticky", "round-robin"]),
    multiple=True,
    help="Of D; repeatable.  [default: sticky]",
)
@click.option("--threshold", callback=threshold, default="64", show_default=True, help="kv_recompute_threshold.")
@click.option("--direct", is_flag=True, help="D may prefill a short suffix itself.")
@click.option(
    "--ttl", type=click.FloatRange(min=0, min_open=True), default=480.0, show_default=True, help="Of a pin, s."
)
@click.option(
    "--pin-budget",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Share of D's pool that pins may take.",
)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the outcomes as JSON instead of a table.")
def simulate(
    model: str | None,
    instance: str | None,
    calibration: Path | None,
    reuse: str,
    retention: tuple[str, ...],
    routing: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Simulate conversations on prefill and decode engines, one row for each way to serve them.

    Every row sees the same conversations. Times come from the calibration, the way of each turn from the product's own
    decision.
    """
    from neuron_pd.plan.simulation.run import simulate
    from neuron_pd.plan.simulation.workload import Policy, Retention, Routing
    from neuron_pd.plan.text import simulation_table

    by = chosen(model, instance, calibration)
    workload, cluster = _scene(by, options)
    policies = [
        Policy(
            on,
            Retention(kept),
            Routing(routed),
            *(options[name] for name in ("threshold", "ttl", "pin_budget", "direct")),
        )
        for on in REUSE[reuse]
        for kept in (retention or ("lease", "pin") if on else ("lease",))
        for routed in routing or ("sticky",)
    ]
    outcomes = [simulate(by, workload, cluster, policy) for policy in policies]
    if as_json:
        rows = [outcome.as_json() for outcome in outcomes]
        scene = {"workload": asdict(workload), "cluster": asdict(cluster)}
        click.echo(json.dumps({"model": by.model, "instance": by.instance, **scene, "rows": rows}, indent=2))
        return
    served = f"{workload.conversations:,} conversations of {workload.turns} turns"
    Console().print(simulation_table(outcomes, f"{by.model} on {by.instance}, {served}; TTFT in milliseconds"))


def _scene(by: "Calibration", options: dict[str, Any]) -> "tuple[Workload, Cluster]":
    from neuron_pd.plan.simulation.workload import Cluster, Spread, Workload

    pool = options["pool_tokens"] or by.pool_tokens
    if not pool:
        raise UsageError("the calibration does not say how large D's pool is: say --pool-tokens")
    workload = Workload(
        spread=Spread(options["spread"]),
        **{
            name: options[name]
            for name in ("conversations", "turns", "first", "user", "reply", "think", "rate", "clients", "seed")
        },
    )
    cluster = Cluster(
        options["prefill"], options["decode"], pool, options["prefill_pool_tokens"] or 0, options["max_num_seqs"]
    )
    return workload, cluster
