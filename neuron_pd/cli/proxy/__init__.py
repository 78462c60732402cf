"""`neuron-pd proxy`: the KV-aware multi-turn proxy. Its options are in one module a topic."""

import sys
from typing import Any

import click

from neuron_pd.cli.proxy.access import access
from neuron_pd.cli.proxy.conversations import conversations
from neuron_pd.cli.proxy.engines import choice, pools
from neuron_pd.cli.proxy.seen import seen
from neuron_pd.cli.proxy.serving import admission, limits, listen, timeouts, tls
from neuron_pd.cli.topics import TopicCommand

LEVELS = ("debug", "info", "warning", "error")


@click.command(name="proxy", cls=TopicCommand)
@pools
@choice
@listen
@tls
@timeouts
@limits
@admission
@conversations
@access
@seen
@click.option("--log-level", default="info", show_default=True, type=click.Choice(LEVELS), help="What goes to stderr.")
def command(log_level: str, **values: Any) -> None:
    """Run the KV-aware multi-turn proxy."""
    from neuron_pd.cli.proxy.log import log_to_stderr
    from neuron_pd.core.control import control_token
    from neuron_pd.hosts.ports import check_port_free
    from neuron_pd.launcher.processes import remembered
    from neuron_pd.proxy.run import run
    from neuron_pd.proxy.settings import Settings

    settings = Settings(
        pools=pools.of(values),
        choice=choice.of(values),
        listen=listen.of(values),
        phases=timeouts.of(values),
        limits=limits.of(values),
        admission=admission.of(values),
        tls=tls.of(values),
        conversations=conversations.of(values),
        access=access.of(values),
        seen=seen.of(values),
        token=control_token(),
    )
    check_port_free(settings.listen.host, settings.listen.port, "the proxy")
    log_to_stderr(log_level)
    with remembered("proxy", "proxy", settings.listen.port):
        run(settings, announce)


def announce(line: str) -> None:
    """Say that the proxy is up."""
    click.echo(line)
    sys.stdout.flush()
