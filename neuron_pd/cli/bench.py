"""`neuron-pd bench`: measure the same conversations with reuse off and on, and report the figures."""

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from neuron_pd.cli import INTERRUPTED
from neuron_pd.errors import EngineError, UsageError

if TYPE_CHECKING:
    from neuron_pd.bench.records import Record
    from neuron_pd.bench.sweep import SweepPlan
    from neuron_pd.bench.target import Endpoints

LEGS = {"both": ("off", "on"), "on": ("on",), "off": ("off",)}


@click.group()
def command() -> None:
    """Measure TTFT with and without reuse, and report it."""


def token_counts(text: str) -> tuple[int, ...]:
    """Comma-separated token counts; a `k` at the end means 1024."""
    try:
        return tuple(
            int(part[:-1]) * 1024 if part[-1:] in "kK" else int(part) for part in text.replace(" ", "").split(",")
        )
    except ValueError:
        raise UsageError(
            f"--lengths {text!r} is not a list of token counts: write it like 1024,2048 or 1k,2k"
        ) from None


def base_url(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text is None:
        return None
    if not text.startswith(("http://", "https://")):
        raise UsageError(f"{text!r} is not a URL: write it like http://127.0.0.1:8000")
    return text.rstrip("/")


@command.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, callback=base_url, help="The proxy.")
@click.option("--prefill-url", callback=base_url, help="The prefill engine, for its transfer metrics.")
@click.option("--decode-url", callback=base_url, help="The decode engine, for its transfer metrics.")
@click.option(
    "--lengths",
    default="1024,2048,4096,8192",
    show_default=True,
    callback=lambda context, parameter, text: token_counts(text),
    help="First prompts, tokens.",
)
@click.option("--turns", default=4, show_default=True, help="Turns of each conversation.")
@click.option("--user-tokens", default=150, show_default=True, help="Tokens of each later user message.")
@click.option("--reply-tokens", default=32, show_default=True, help="Tokens of each reply.")
@click.option("--leg", type=click.Choice(list(LEGS)), default="both", show_default=True, help="Reuse off, on, or both.")
@click.option("--repeats", default=1, show_default=True, help="Conversations a length and leg.")
@click.option("--seed", default=0, show_default=True, help="Chooses the words.")
@click.option("--model", help="The served model's name; the first that is served if not given.")
@click.option("--out", type=click.Path(path_type=Path), help="Records file; results/<time>.jsonl if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON instead of a table.")
def sweep(
    url: str, prefill_url: str | None, decode_url: str | None, leg: str, out: Path | None, as_json: bool, **plan: Any
) -> None:
    """Hold one conversation a prompt length and leg, and record every request.

    Ctrl-C keeps what was measured. Exit status 1 when a request failed.
    """
    from neuron_pd.bench.sweep import SweepPlan
    from neuron_pd.bench.target import Endpoints

    path = out or Path("results") / f"{datetime.now():%Y%m%d-%H%M%S}.jsonl"
    endpoints = Endpoints(url, prefill_url, decode_url)
    records: list[Record] = []
    try:
        asyncio.run(_measure(SweepPlan(legs=LEGS[leg], **plan), endpoints, path, records))
    except KeyboardInterrupt:
        click.echo(f"interrupted: {len(records)} measured requests are kept", err=True)
        raise SystemExit(INTERRUPTED) from None
    finally:
        _show(records, path, as_json)
    if failed := [record for record in records if not record.ok]:
        raise EngineError(f"{len(failed)} of {len(records)} requests failed; the first: {failed[0].error}")


async def _measure(plan: "SweepPlan", endpoints: "Endpoints", path: Path, records: "list[Record]") -> None:
    from neuron_pd.bench.progress import live
    from neuron_pd.bench.records import RecordWriter
    from neuron_pd.bench.sweep import describe, run_sweep

    plan, header = await describe(plan, endpoints, ["neuron-pd", *sys.argv[1:]])
    with RecordWriter(path, header) as writer, live(Console(stderr=True)) as progress:

        def sink(record: "Record") -> None:
            writer.write(record)
            records.append(record)

        await run_sweep(plan, endpoints, sink, progress)


@command.command()
@click.argument("records", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the report; beside the records if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON instead of a table.")
def report(records: Path, out: Path | None, as_json: bool) -> None:
    """Turn the RECORDS of a sweep into a table, two pictures (PNG) and one self-contained HTML page."""
    from neuron_pd.bench.records import read_run
    from neuron_pd.bench.report import write_report

    run = read_run(records)
    if not run.records:
        raise UsageError(f"{records} holds no measured request: run the sweep again")
    page = write_report(run.records, out or records.with_suffix(""), run.header)
    _figures(run.records, as_json)
    Console(stderr=True).print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)


def _show(records: "Sequence[Record]", path: Path, as_json: bool) -> None:
    if not records:
        return
    _figures(records, as_json)
    message = f"records: {path}\nreport:  neuron-pd bench report {path}"
    Console(stderr=True).print(message, highlight=False, markup=False, soft_wrap=True)


def _figures(records: "Sequence[Record]", as_json: bool) -> None:
    from neuron_pd.bench import figures
    from neuron_pd.bench.report import table

    if as_json:
        click.echo(json.dumps(figures.demo_json(records), indent=2))
        return
    console = Console()
    console.print(table(figures.summary(records)))
    equal, total = figures.answers(records)
    if total:
        console.print(f"answers: {equal} of {total} ON answers equal the OFF answers", highlight=False)
    for warning in figures.warnings(records):
        console.print(f"note: {warning}", highlight=False, markup=False)
