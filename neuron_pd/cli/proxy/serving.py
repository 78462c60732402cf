"""How the proxy serves its clients: where it listens, and how much and how long it lets things be."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuron_pd.cli.topics import topic
from neuron_pd.hosts.addresses import PROXY_PORT

if TYPE_CHECKING:
    from neuron_pd.proxy.admission import Bounds
    from neuron_pd.proxy.http import Limits
    from neuron_pd.proxy.settings import Listen, Phases
    from neuron_pd.proxy.tls import Tls

FILE = click.Path(path_type=Path, dir_okay=False)
SECONDS: dict[str, Any] = {"show_default": True, "type": click.FloatRange(0.01), "metavar": "SECONDS"}


@topic(
    "Listening",
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", default=PROXY_PORT, show_default=True, type=click.IntRange(1, 65535),
                 help="Port to listen on."),
    click.option("--drain-seconds", default=10.0, show_default=True, type=click.FloatRange(0),
                 help="How long requests in flight may take to end after SIGTERM."),
    click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 256),
                 help="Processes that share the port; more than one want --store redis://…"),
)  # fmt: skip
def listen(host: str, port: int, drain_seconds: float, workers: int) -> "Listen":
    from neuron_pd.proxy.settings import Listen

    return Listen(host, port, drain_seconds, workers)


@topic(
    "TLS",
    click.option("--tls-cert", type=FILE, metavar="FILE", help="Serve https with this certificate chain (PEM)."),
    click.option("--tls-key", type=FILE, metavar="FILE", help="Its private key (PEM)."),
    click.option("--engine-ca", type=FILE, metavar="FILE",
                 help="Authorities (PEM) that vouch for engines at https://. [the system's]"),
)  # fmt: skip
def tls(tls_cert: Path | None, tls_key: Path | None, engine_ca: Path | None) -> "Tls":
    from neuron_pd.proxy.tls import Tls

    return Tls(tls_cert, tls_key, engine_ca)


@topic(
    "Timeouts",
    click.option("--connect-timeout", default=10.0, **SECONDS, help="For a connection to an engine."),
    click.option("--acquire-timeout", default=1.0, **SECONDS,
                 help="For D's answer about a handle; then an ordinary prefill."),
    click.option("--prefill-timeout", default=600.0, **SECONDS, help="For P's whole leg."),
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


@topic(
    "Admission",
    click.option("--max-concurrency", type=click.IntRange(1), metavar="N",
                 help="Requests that are with the engines at once; further ones wait. [no limit]"),
    click.option("--max-queue", default=1024, show_default=True, type=click.IntRange(0), metavar="N",
                 help="How many may wait; further ones get 429."),
    click.option("--queue-timeout", default=30.0, **SECONDS, help="How long one may wait; then it gets 429."),
)  # fmt: skip
def admission(max_concurrency: int | None, max_queue: int, queue_timeout: float) -> "Bounds":
    from neuron_pd.proxy.admission import Bounds

    return Bounds(max_concurrency, max_queue, queue_timeout)
