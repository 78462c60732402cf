"""`neuron-pd plan simulate`: conversations on prefill and decode engines, event by event."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from neuron_pd.cli.calibrations import ABOVE_0, COUNT, SECONDS, chosen, threshold, which_calibration
from neuron_pd.cli.values import TokenCount
from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.plan.calibration import Calibration
    from neuron_pd.plan.simulation.workload import Cluster, Workload

SPREAD = click.Choice(["constant", "exponential"])
REUSE = {"off": (False,), "on": (True,), "both": (False, True)}


@click.command("simulate")
@which_calibration
@click.option("--conversations", type=COUNT, default=1000, show_default=True, help="How many are held.")
@click.option("--turns", type=COUNT, default=10, show_default=True, help="Turns of each conversation.")
@click.option(
    "--prompt", "first", type=TokenCount(), default="4k", show_default=True, help="First prompts, on average."
)
@click.option("--spread", type=SPREAD, default="constant", show_default=True, help="Of first prompts.")
@click.option("--user", type=COUNT, default=150, show_default=True, help="Tokens of each later question.")
@click.option("--reply", type=COUNT, default=300, show_default=True, help="Tokens of each reply.")
@click.option("--think", type=SECONDS, default=10.0, show_default=True, help="Mean pause between turns, seconds.")
@click.option("--pauses", type=SPREAD, default="exponential", show_default=True, help="How the pauses vary.")
@click.option("--rate", type=ABOVE_0, help="Conversations that begin a second, at random.")
@click.option("--clients", type=COUNT, default=16, show_default=True, help="Conversations at once, without a rate.")
@click.option("--prefill", type=COUNT, default=1, show_default=True, help="Prefill engines.")
@click.option("--decode", type=COUNT, default=1, show_default=True, help="Decode engines.")
@click.option("--pool-tokens", type=TokenCount(), help="KV cache of each D; the calibration's if not given.")
@click.option("--prefill-pool-tokens", type=TokenCount(), help="Prefix cache of each P; it keeps nothing if not given.")
@click.option("--max-num-seqs", type=COUNT, default=256, show_default=True, help="Replies that a D streams at once.")
@click.option("--reuse", type=click.Choice(list(REUSE)), default="both", show_default=True, help="With it, or not.")
@click.option("--retention", type=click.Choice(["lease", "pin"]), multiple=True, help="Repeatable.  [default: both]")
@click.option(
    "--routing",
    type=click.Choice(["sticky", "round-robin"]),
    multiple=True,
    help="Of D; repeatable.  [default: sticky]",
)
@click.option("--threshold", callback=threshold, default="64", show_default=True, help="kv_recompute_threshold.")
@click.option("--direct", is_flag=True, help="D may prefill a short suffix itself.")
@click.option("--ttl", type=ABOVE_0, default=480.0, show_default=True, help="Seconds of a pin.")
@click.option(
    "--pin-budget",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Share of D's pool that pins may take.",
)
@click.option("--seed", default=0, show_default=True, help="Of the conversations' draws.")
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
    from neuron_pd.plan.simulation.run import simulate as run
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
    outcomes = [run(by, workload, cluster, policy) for policy in policies]
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
        pauses=Spread(options["pauses"]),
        **{
            name: options[name]
            for name in ("conversations", "turns", "first", "user", "reply", "think", "rate", "clients", "seed")
        },
    )
    cluster = Cluster(
        options["prefill"], options["decode"], pool, options["prefill_pool_tokens"] or 0, options["max_num_seqs"]
    )
    return workload, cluster
