"""How the proxy serves its clients: where it listens, and how much and how long it lets things be."""

from typing import TYPE_CHECKING, Any

import click

from neuron_pd.cli.topics import topic

if TYPE_CHECKING:
    from neuron_pd.proxy.http import Limits
    from neuron_pd.proxy.settings import Listen, Phases

SECONDS: dict[str, Any] = {"show_default": True, "type": click.FloatRange(0.01), "metavar": "SECONDS"}


@topic(
    "Listening",
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on."),
    click.option("--drain-seconds", default=10.0, show_default=True, type=click.FloatRange(0),
                 help="How long requests in flight may take to end after SIGTERM."),
)  # fmt: skip
def listen(host: str, port: int, drain_seconds: float) -> "Listen":
    from neuron_pd.proxy.settings import Listen

    return Listen(host, port, drain_seconds)


@topic(
    "Timeouts",
    click.option("--connect-timeout", default=10.0, **SECONDS),
    click.option("--acquire-timeout", default=1.0, **SECONDS,
                 help="For D's answer about a handle; then an ordinary prefill."),
    click.option("--prefill-timeout", default=600.0, **SECONDS),
    click.option("--first-byte-timeout", default=600.0, **SECONDS,
                 help="For D's first byte: a whole answer where it is not streamed."),
    click.option("--idle-timeout", default=300.0, **SECONDS,
                 help="For a gap within D's answer, and for a client that reads nothing."),
)  # fmt: skip
def timeouts(
    connect_timeout: float,
    acquire_timeout: float,
    prefill_timeout: float,
    first_byte_timeout: float,
    idle_timeout: float,
) -> "Phases":
    from neuron_pd.proxy.settings import Phases

    return Phases(connect_timeout, acquire_timeout, prefill_timeout, first_byte_timeout, idle_timeout, idle_timeout)


@topic(
    "Limits",
    click.option("--max-body-mib", default=64, show_default=True, type=click.IntRange(1), help="Largest request body."),
)
def limits(max_body_mib: int) -> "Limits":
    from neuron_pd.proxy.http import Limits

    return Limits(max_body=max_body_mib * 1024 * 1024)
