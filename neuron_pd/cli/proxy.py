"""`neuron-pd proxy`: the KV-aware multi-turn proxy."""

import sys
from collections.abc import Sequence

import click

from neuron_pd.errors import UsageError

LEVELS = ("debug", "info", "warning", "error")


@click.command(name="proxy")
@click.option("--prefill", multiple=True, metavar="URL", help="A prefill engine, http://HOST:PORT. Repeatable.")
@click.option("--decode", multiple=True, metavar="URL", help="A decode engine, http://HOST:PORT. Repeatable.")
@click.option("--prefiller-host", "--prefiller-hosts", "prefiller_hosts", multiple=True, metavar="HOST[,HOST…]",
              help="Hosts of prefill engines, as vLLM's example proxies take them.")  # fmt: skip
@click.option("--prefiller-port", "--prefiller-ports", "prefiller_ports", multiple=True, metavar="PORT[,PORT…]",
              help="Their ports: one for each host, or several for one host. [8100]")  # fmt: skip
@click.option("--decoder-host", "--decoder-hosts", "decoder_hosts", multiple=True, metavar="HOST[,HOST…]",
              help="Hosts of decode engines.")  # fmt: skip
@click.option("--decoder-port", "--decoder-ports", "decoder_ports", multiple=True, metavar="PORT[,PORT…]",
              help="Their ports. [8200]")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option("--kv-host", multiple=True, metavar="URL=HOST",
              help="Host of an engine's KV side channel, where it is not the URL's. Repeatable.")  # fmt: skip
@click.option("--connect-timeout", default=10.0, show_default=True, type=click.FloatRange(0.01), metavar="SECONDS")
@click.option("--acquire-timeout", default=1.0, show_default=True, type=click.FloatRange(0.01), metavar="SECONDS",
              help="For D's answer about a handle; then an ordinary prefill.")  # fmt: skip
@click.option("--prefill-timeout", default=600.0, show_default=True, type=click.FloatRange(0.01), metavar="SECONDS")
@click.option("--first-byte-timeout", default=600.0, show_default=True, type=click.FloatRange(0.01), metavar="SECONDS",
              help="For D's first byte: a whole answer where it is not streamed.")  # fmt: skip
@click.option("--idle-timeout", default=300.0, show_default=True, type=click.FloatRange(0.01), metavar="SECONDS",
              help="For a gap within D's answer, and for a client that reads nothing.")  # fmt: skip
@click.option("--max-body-mib", default=64, show_default=True, type=click.IntRange(1), help="Largest request body.")
@click.option("--conversation-ttl", default=3600.0, show_default=True, type=click.FloatRange(1), metavar="SECONDS",
              help="How long an unused conversation is remembered.")  # fmt: skip
@click.option("--max-conversations", default=100_000, show_default=True, type=click.IntRange(1),
              help="How many are remembered, at most.")  # fmt: skip
@click.option("--drain-seconds", default=10.0, show_default=True, type=click.FloatRange(0),
              help="How long requests in flight may take to end after SIGTERM.")  # fmt: skip
@click.option("--log-level", default="info", show_default=True, type=click.Choice(LEVELS))
def command(
    prefill: Sequence[str],
    decode: Sequence[str],
    prefiller_hosts: Sequence[str],
    prefiller_ports: Sequence[str],
    decoder_hosts: Sequence[str],
    decoder_ports: Sequence[str],
    host: str,
    port: int,
    kv_host: Sequence[str],
    connect_timeout: float,
    acquire_timeout: float,
    prefill_timeout: float,
    first_byte_timeout: float,
    idle_timeout: float,
    max_body_mib: int,
    conversation_ttl: float,
    max_conversations: int,
    drain_seconds: float,
    log_level: str,
) -> None:
    """Run the KV-aware multi-turn proxy."""
    from neuron_pd.core.control import control_token
    from neuron_pd.launcher.ports import check_port_free
    from neuron_pd.proxy.run import run
    from neuron_pd.proxy.settings import Phases, Settings
    from neuron_pd.proxy.targets import from_options

    targets = from_options(
        (*prefill, *from_hosts("prefiller", prefiller_hosts, prefiller_ports, 8100)),
        (*decode, *from_hosts("decoder", decoder_hosts, decoder_ports, 8200)),
        kv_host,
    )
    phases = Phases(connect_timeout, acquire_timeout, prefill_timeout, first_byte_timeout, idle_timeout, idle_timeout)
    settings = Settings(
        *targets, host, port, control_token(), phases,
        max_body=max_body_mib * 1024 * 1024, conversation_ttl=conversation_ttl,
        max_conversations=max_conversations, drain=drain_seconds,
    )  # fmt: skip
    check_port_free(host, port, "the proxy")
    log_to_stderr(log_level)
    run(settings, announce)


def from_hosts(side: str, hosts: Sequence[str], ports: Sequence[str], default: int) -> list[str]:
    """URLs from lists of hosts and ports: pairwise, or one host with several ports, or several hosts on one port."""
    names, numbers = _split(hosts), _split(ports)
    if not names and numbers:
        names = ["localhost"]
    if names and not numbers:
        numbers = [str(default)]
    for number in numbers:
        if not number.isdecimal() or not 1 <= int(number) <= 65535:
            raise UsageError(f"--{side}-port {number} is not a port: give a number from 1 to 65535")
    if len(names) == 1:
        names *= len(numbers)
    elif len(numbers) == 1:
        numbers *= len(names)
    if len(names) != len(numbers):
        raise UsageError(f"{len(names)} --{side}-hosts and {len(numbers)} --{side}-ports: give one port for each host")
    return [f"http://{_bracketed(name)}:{number}" for name, number in zip(names, numbers, strict=True)]


def announce(line: str) -> None:
    """Say that the proxy is up."""
    click.echo(line)
    sys.stdout.flush()


def log_to_stderr(level: str) -> None:
    import logging

    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


def _split(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in value.replace(",", " ").split()]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
