"""`neuron-pd bench proxy`: what a proxy costs, next to others."""

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from neuron_pd.errors import UsageError

WIDTH = 150  # of the table in a file


def peer_names(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    from neuron_pd.bench.proxy.contenders import PEERS

    names = tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))
    for name in names:
        if name not in PEERS:
            raise UsageError(f"--peers {name}: known are {', '.join(PEERS)}")
    return names


@click.command("proxy")
@click.option("--peers", metavar="example,vllm-router", callback=peer_names, help="Other proxies, in the same run.")
@click.option("--json", "path", type=click.Path(path_type=Path, dir_okay=False), help="Also write the rows to a file.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Times that each is loaded.")
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(0.1), help="Length of a round.")
@click.option("--clients", default=32, show_default=True, type=click.IntRange(1), help="They ask again and again.")
@click.option("--chunks", default=64, show_default=True, type=click.IntRange(1), help="Chunks of each reply.")
@click.option("--burst", default=160, show_default=True, type=click.IntRange(0), help="Clients that arrive at once.")
@click.option("--conversations", default=1_000_000, show_default=True, type=click.IntRange(0),
              help="Whose memory is measured; 0 leaves it out.")  # fmt: skip
def proxy(path: Path | None, conversations: int, **plan: Any) -> None:
    """Load the proxy between engines that cost nothing, one core for it, another for engines and client.

    Without --peers it measures neuron-pd's own proxy, and the fake engine alone.
    """
    from neuron_pd.bench.proxy.measure import Bench, Plan
    from neuron_pd.bench.proxy.memory import measure_memory
    from neuron_pd.bench.proxy.report import memory_line, table

    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"--json {path}: there is no folder {path.absolute().parent}")
    progress = Console(stderr=True)
    say = progress.log if progress.is_terminal else (lambda line: click.echo(line, err=True))
    with Bench(Plan(**plan), say) as bench:
        bench.measure()
        report = bench.report()
    report["memory"] = measure_memory(conversations, say) if conversations else None
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n")
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table(report))
    for line in (*memory_line(report["memory"]), *report["notes"]):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
