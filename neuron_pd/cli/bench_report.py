"""`neuron-pd bench report`: make a run readable."""

from pathlib import Path

import click
from rich.console import Console

from neuron_pd.cli.bench_sweep import show_figures
from neuron_pd.errors import UsageError


@click.command()
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
    page = write_report(run.records, out or (records if records.is_dir() else records.with_suffix("")), run.header)
    show_figures(run.records, as_json)
    Console(stderr=True).print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
