"""Which engines stand behind the proxy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from neuron_pd.cli.topics import topic
from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.proxy.settings import Pools


@topic(
    "Engines",
    click.option("--prefill", multiple=True, metavar="URL", help="A prefill engine, http://HOST:PORT. Repeatable."),
    click.option("--decode", multiple=True, metavar="URL", help="A decode engine, http://HOST:PORT. Repeatable."),
    click.option("--prefiller-host", "--prefiller-hosts", "prefiller_hosts", multiple=True, metavar="HOST[,HOST…]",
                 help="Hosts of prefill engines, as vLLM's example proxies take them."),
    click.option("--prefiller-port", "--prefiller-ports", "prefiller_ports", multiple=True, metavar="PORT[,PORT…]",
                 help="Their ports: one for each host, or several for one host. [8100]"),
    click.option("--decoder-host", "--decoder-hosts", "decoder_hosts", multiple=True, metavar="HOST[,HOST…]",
                 help="Hosts of decode engines."),
    click.option("--decoder-port", "--decoder-ports", "decoder_ports", multiple=True, metavar="PORT[,PORT…]",
                 help="Their ports. [8200]"),
    click.option("--kv-host", multiple=True, metavar="URL=HOST",
                 help="Host of an engine's KV side channel, where it is not the URL's. Repeatable."),
)  # fmt: skip
def pools(
    prefill: Sequence[str],
    decode: Sequence[str],
    prefiller_hosts: Sequence[str],
    prefiller_ports: Sequence[str],
    decoder_hosts: Sequence[str],
    decoder_ports: Sequence[str],
    kv_host: Sequence[str],
) -> "Pools":
    from neuron_pd.proxy.settings import Pools
    from neuron_pd.proxy.targets import from_options

    return Pools(
        *from_options(
            (*prefill, *from_hosts("prefiller", prefiller_hosts, prefiller_ports, 8100)),
            (*decode, *from_hosts("decoder", decoder_hosts, decoder_ports, 8200)),
            kv_host,
        )
    )


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


def _split(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in value.replace(",", " ").split()]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
