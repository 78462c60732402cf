"""A plan, and a calibration's predictions, for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from neuron_pd.plan.calibrate import Prediction
from neuron_pd.plan.calibration import Calibration
from neuron_pd.plan.plan import Plan, Row
from neuron_pd.plan.simulation.outcome import Outcome

PLAN_COLUMNS = (
    "first prompt",
    "TTFT off",
    "on",
    "ratio",
    "P kept",
    "prefill off",
    "on",
    "compute",
    "transfer",
    "handover",
)
QUEUE_COLUMNS = ("queue off", "on")
SIMULATION_COLUMNS = (
    "TTFT\np50",
    "\np90",
    "\np99",
    "\nreused",
    "recomputed\ntokens",
    "P\nbusy",
    "waits\nby pins",
    "longest\ns",
)
PREDICTION_COLUMNS = ("quantity", "leg", "first prompt", "turns", "measured", "planned", "error")


def plan_table(plan: Plan) -> Table:
    """A row for each length, in milliseconds. `compute`, `transfer` and `handover` are parts of the TTFT with reuse."""
    by, loaded = plan.calibration, plan.load.loaded
    title = f"{by.model} on {by.instance}, turn {plan.conversation.turn}, milliseconds"
    table = Table(title=title, box=SIMPLE_HEAD, padding=0)
    for name in PLAN_COLUMNS + (QUEUE_COLUMNS if loaded else ()):
        table.add_column(name, justify="right")
    for row in plan.rows:
        table.add_row(*_cells(row), *((_ms(row.off.queue_ms), _ms(row.on.queue_ms)) if loaded else ()))
    return table


def _cells(row: Row) -> list[str]:
    on = row.on.account
    parts = (row.off.account.prefill, on.prefill, on.compute, on.transfer, on.handover)
    return [
        f"{row.length:,}",
        _ms(row.off.ttft_ms),
        _ms(row.on.ttft_ms),
        "–" if row.speedup is None else f"{row.speedup:.1f}×",
        _ms(row.local.ttft_ms),
        *(_ms(1000 * seconds) for seconds in parts),
    ]


def _ms(value: float | None) -> str:
    return "∞" if value is None else f"{value:,.0f}"


def notes(plan: Plan) -> list[str]:
    """What stands below the table: error bands, break-even, retention; one line each."""
    by = plan.calibration
    new = f"{plan.conversation.reply} tokens of reply and {plan.conversation.user} of question"
    found = [
        f"P kept: P has the last prompt in its own cache, and computes {new}",
        f"error bands: TTFT off ±{by.band('ttft off'):.0%}, on ±{by.band('ttft on'):.0%} "
        "(two standard deviations of what the calibration was fitted to)",
    ]
    if held_out := by.held_out.get("ttft"):
        found.append(
            f"held out: TTFT medians that the calibration was not fitted on are {held_out['median_error']:.0%} off "
            f"in the median, {held_out['largest_error']:.0%} at most"
        )
    return [*found, _break_even(plan), *_retention(plan)]


def _break_even(plan: Plan) -> str:
    low, high = plan.break_even_range
    if plan.break_even is None:
        return "break-even: computing is cheaper at every length"
    until = "none" if high is None else f"{high:,}"
    band = f"{low or 0:,} to {until} within the error band"
    return f"break-even (kv_recompute_threshold): {plan.break_even:,} tokens or more are cheaper to fetch; {band}"


def _retention(plan: Plan) -> list[str]:
    kept = plan.retention
    if kept is None:
        return ["retention: the calibration does not say how large D's pool is (--pool-tokens)"]
    pool = f"D's pool of {kept.pool_tokens:,} tokens"
    lines = [f"retention: {pool} holds {kept.conversations:,} conversations of {kept.turn_tokens:,} tokens"]
    if kept.lease_seconds is not None:
        lines.append(
            f"  lease: one is still in D's cache {kept.lease_seconds:,.0f} s after its last turn, at this rate"
        )
    starves = {None: "", True: "; this rate starves D", False: "; this rate fits"}[kept.pin_starves]
    never_back = f"turns a second of conversations that do not come back within {kept.pin_ttl:,.0f} s"
    return [*lines, f"  pin: room for {kept.pin_rate:.2f} {never_back}{starves}"]


def source_lines(by: Calibration) -> list[str]:
    return [f"{part}: {source}" for part, source in by.sources.items()]


def prediction_table(predictions: Sequence[Prediction], title: str) -> Table:
    """Medians measured and planned, in milliseconds."""
    table = Table(title=title)
    for name in PREDICTION_COLUMNS:
        table.add_column(name, justify="left" if name in ("quantity", "leg") else "right")
    for each in predictions:
        table.add_row(
            str(each.quantity),
            each.leg,
            f"{each.length:,}",
            str(each.turns),
            f"{1000 * each.measured:,.1f}",
            f"{1000 * each.planned:,.1f}",
            f"{each.error:+.0%}",
        )
    return table


def prediction_line(summary: Mapping[str, Any]) -> str:
    """The median and largest errors by quantity, in one line."""
    found = (f"{name} {by['median_error']:.0%} ({by['largest_error']:.0%})" for name, by in summary.items())
    return f"off in the median (at most): {', '.join(found)}"


def simulation_table(outcomes: Sequence[Outcome], title: str) -> Table:
    """One row a policy: TTFT in milliseconds, and what became of the history, over the turns from the second on."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=0)
    table.add_column("reuse, retention,\nrouting", no_wrap=True)
    for name in SIMULATION_COLUMNS:
        table.add_column(name, justify="right")
    for outcome in outcomes:
        found = outcome.as_json()
        table.add_row(
            str(outcome.policy),
            *(f"{found[f'ttft_ms_p{percent}']:,.0f}" for percent in (50, 90, 99)),
            f"{found['reused_share']:.0%}",
            f"{found['recomputed_tokens']:,}",
            f"{found['prefill_utilisation']:.0%}",
            f"{found['retention_waits']:,}",
            f"{found['retention_wait_s_max']:,.1f}",
        )
    return table
