"""`neuron-pd bench report`: make a run readable, or two beside each other."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from neuron_pd.cli.bench_sweep import show_figures
from neuron_pd.cli.values import leg_file
from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.bench.article import Sources
    from neuron_pd.bench.records import Run

Files = Sequence[tuple[str, Path]]
PATH = click.Path(path_type=Path)


@click.command()
@click.argument("records", type=PATH, required=False)
@click.option("--compare", nargs=2, type=PATH, metavar="A B", help="Two runs beside each other instead.")
@click.option("--stats", multiple=True, callback=leg_file, metavar="LEG=FILE",
              help="Statistics of vLLM's multi-turn benchmark, a file a prompt length.")  # fmt: skip
@click.option("--proxy-log", multiple=True, callback=leg_file, metavar="LEG=FILE", help="The proxy's log of that leg.")
@click.option("--prefill-log", multiple=True, callback=leg_file, metavar="LEG=FILE",
              help="The prefill node's log of that leg.")  # fmt: skip
@click.option("--out", type=PATH, help="Folder for the report; beside the records if not given.")
@click.option("--stats-json-output", "stats_json", type=click.Path(path_type=Path, dir_okay=False),
              help="Also write per-request statistics as vLLM's multi-turn benchmark does.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON instead of a table.")
def report(
    records: Path | None,
    compare: tuple[Path, Path] | None,
    stats: Files,
    proxy_log: Files,
    prefill_log: Files,
    out: Path | None,
    stats_json: Path | None,
    as_json: bool,
) -> None:
    """Turn the RECORDS of a sweep (its directory or file) into tables, pictures and one self-contained HTML page.

    With --stats, an article-style run: statistics JSON, proxy log and prefill node log of each leg, on=FILE and
    off=FILE. With --compare, the ratio of two runs' TTFTs and its 95 % interval.
    """
    if [bool(records), bool(compare), bool(stats)].count(True) != 1:
        raise UsageError("name the records of one run, or --compare A B, or --stats LEG=FILE")
    if compare:
        _compare(*compare, out, as_json)
        return
    if records is not None:
        from neuron_pd.bench.records_file import read_run

        run = read_run(records)
        place = out or (records if records.is_dir() else records.with_suffix(""))
        _report(run, (), place, as_json)
        if stats_json is not None:
            from neuron_pd.bench.vllm_statistics import write_statistics

            write_statistics(run.records, stats_json)
        return
    from neuron_pd.bench.article import read_article
    from neuron_pd.bench.records import Run

    article = read_article(_sources(stats, proxy_log, prefill_log))
    _report(Run({}, article.records), article.notes, out or Path("report"), as_json)


def _report(run: "Run", notes: Sequence[str], place: Path, as_json: bool) -> None:
    from neuron_pd.bench.report import write_report

    if not run.records:
        raise UsageError("there is no measured request: run the sweep again")
    page = write_report(run, place, notes)
    show_figures(run.records, as_json, notes, run.cells)
    _say(page)


def _sources(stats: Files, proxy_log: Files, prefill_log: Files) -> "dict[str, Sources]":
    from neuron_pd.bench.article import Sources

    legs = dict.fromkeys(leg for leg, _ in stats)
    kinds = (stats, proxy_log, prefill_log)
    return {leg: Sources(*([path for named, path in files if named == leg] for files in kinds)) for leg in legs}


def _compare(a: Path, b: Path, out: Path | None, as_json: bool) -> None:
    from neuron_pd.bench.compare import compare
    from neuron_pd.bench.records_file import read_run
    from neuron_pd.bench.report import comparison_cells, write_comparison
    from neuron_pd.bench.tables import table

    runs = {"A": read_run(a), "B": read_run(b)}
    found = compare(runs["A"].records, runs["B"].records)
    if not found:
        raise UsageError(f"{a} and {b} have no setting and leg in common")
    if as_json:
        click.echo(json.dumps([one.as_json() for one in found], indent=2))
    else:
        columns, rows = comparison_cells(found)
        Console().print(table(columns, rows, f"A is {a}, B is {b}; the ratio with its 95 % bootstrap interval"))
    if out is not None:
        names = {f"A: {a}": runs["A"].header, f"B: {b}": runs["B"].header}
        _say(write_comparison(found, out, names))


def _say(page: Path) -> None:
    Console(stderr=True).print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
