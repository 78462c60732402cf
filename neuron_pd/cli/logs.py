"""`neuron-pd logs`: what the servers wrote."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.doctor.logs.records import Record
    from neuron_pd.doctor.logs.sources import Source

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
FOLLOWED = 20  # records that come first when logs are followed


@click.command("logs")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE|DIR]...")
@click.option("--unit", "units", multiple=True, metavar="NAME", help="A systemd unit's journal. Repeatable.")
@click.option("--read-backs", "kinds", flag_value="read-backs", multiple=True, help="Turns that started from D's KV.")
@click.option(
    "--declines",
    "kinds",
    flag_value="declines",
    multiple=True,
    help="What was offered and not used, and why: turns, leases, reads.",
)
@click.option("--transfers", "kinds", flag_value="transfers", multiple=True, help="vLLM's KV transfer metrics.")
@click.option("--warnings", "kinds", flag_value="warnings", multiple=True, help="Warnings and worse.")
@click.option(
    "--grep",
    "texts",
    multiple=True,
    metavar="TEXT",
    help="Only records with this text: the id of a request, a lease or an engine. Repeatable: with all.",
)
@click.option("--since", metavar="TIME", help="From then on: 10m, 2h, 1d ago, or 2026-11-30 10:00.")
@click.option("--lines", type=click.IntRange(1), metavar="N", help="The last N records. [all; 20 when followed]")
@click.option("--follow", "-f", is_flag=True, help="And what is written from now on, until Ctrl-C.")
def command(
    paths: Sequence[Path],
    units: Sequence[str],
    kinds: Sequence[str],
    texts: Sequence[str],
    since: str | None,
    lines: int | None,
    follow: bool,
) -> None:
    """Show what prefill, decode and proxy wrote, in order of time.

    By itself it finds the logs of what `neuron-pd up` runs here, else of its last run, else the journal of the units
    neuron-pd-*. Ids of conversations are never logged.
    """
    from neuron_pd.doctor.logs import read
    from neuron_pd.doctor.logs.kinds import Filter

    now = datetime.now()
    begin = moment(since, now) if since else None
    sources = find(paths, units, begin)
    wanted = Filter(frozenset(kinds), texts, begin)
    if not follow:
        _show(read.read(sources, wanted, now, lines))
        return
    try:
        _show(read.follow(sources, wanted, now, lines or FOLLOWED))
    except KeyboardInterrupt:
        return


def find(paths: Sequence[Path], units: Sequence[str] = (), since: datetime | None = None) -> "Sequence[Source]":
    """The logs that were named, else those of what runs here, of the last run, or the journal's. UsageError."""
    from shutil import which

    from neuron_pd.doctor.logs.sources import UNITS, Journal, files_at, newest_run
    from neuron_pd.launcher.processes import running
    from neuron_pd.launcher.state import state_dir

    begin = f"{since:%Y-%m-%d %H:%M:%S}" if since else None
    if paths or units:
        return [*files_at(paths), *([Journal(units, begin)] if units else [])]
    live = [Path(started.log) for started in running() if started.log]
    if live := [log for log in live if log.is_file()]:
        return files_at(live)
    if newest := newest_run(state_dir() / "runs"):
        return files_at([newest])
    if which("journalctl"):
        return [Journal([UNITS], begin)]
    raise UsageError(f"nothing was started here and {state_dir() / 'runs'} has no logs: name the files or the --unit")


def moment(text: str, now: datetime) -> datetime:
    """What --since says, in local time. UsageError."""
    try:
        if found := re.fullmatch(r"(\d+)([smhd])", text):
            return now - timedelta(**{UNITS[found[2]]: int(found[1])})
        return datetime.fromisoformat(text).astimezone().replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise UsageError(f"--since {text!r} is no time: write it like 10m, 2h, 1d or 2026-11-30 10:00") from None


def _show(found: "Iterable[Record]") -> None:
    for record in found:
        click.echo(str(record))
