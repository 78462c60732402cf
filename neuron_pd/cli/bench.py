"""`neuron-pd bench`: measure the same conversations with reuse off and on, and report the figures."""

import click

from neuron_pd.cli.bench_proxy import proxy
from neuron_pd.cli.bench_report import report
from neuron_pd.cli.bench_sweep import sweep


@click.group()
def command() -> None:
    """Measure what reuse brings, and what the proxy costs."""


command.add_command(sweep)
command.add_command(report)
command.add_command(proxy)
