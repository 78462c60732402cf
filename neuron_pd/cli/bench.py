"""`neuron-pd bench`: measure the same conversations with reuse off and on, and report the figures."""

import click

from neuron_pd.cli.bench_report import report
from neuron_pd.cli.bench_sweep import sweep


@click.group()
def command() -> None:
    """Measure TTFT with and without reuse, and report it."""


command.add_command(sweep)
command.add_command(report)
