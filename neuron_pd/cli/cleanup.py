"""`neuron-pd cleanup`: stop what `up` or `launch` started."""

import click

from neuron_pd.errors import UsageError

WHAT = ("proxy", "server", "all")


@click.command("cleanup")
@click.argument("what", metavar="|".join(WHAT))
@click.option("--grace", default=20.0, show_default=True, type=click.FloatRange(0), metavar="SECONDS",
              help="Time to end by itself before it is killed.")  # fmt: skip
def command(what: str, grace: float) -> None:
    """Stop the proxy, the servers, or all that `neuron-pd up`, `proxy` or `launch --exec` started on this machine.

    Nothing else is touched: processes are known by their pid and start time, never by name.
    """
    from neuron_pd.launcher import processes
    from neuron_pd.launcher.link import remove_stale

    if what not in WHAT:
        raise UsageError(f"unknown {what!r}: clean up {', '.join(WHAT[:-1])} or {WHAT[-1]}")
    found = [started for started in processes.running() if what in ("all", started.kind)]
    for started in found:
        if processes.stop(started, grace):
            click.echo(f"stopped {started.name} (pid {started.pid}, port {started.port})")
    links = remove_stale()
    if links:
        click.echo(f"removed {links} network namespaces that a killed run left")
    if not found and not links:
        click.echo("nothing to stop")
