"""Which engines stand behind the proxy."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuron_pd.cli.topics import topic
from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.proxy.settings import Choice, Pools


@topic(
    "Engines",
    click.option("--prefill", multiple=True, metavar="URL",
                 help="A prefill engine, http://HOST:PORT; or dns+http://NAME:PORT, one for each address. Repeatable."),
    click.option("--decode", multiple=True, metavar="URL", help="A decode engine, likewise. Repeatable."),
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
    click.option("--pools", "pools_file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
                 help="Engines in a YAML file, read again when it changes and on SIGHUP."),
    click.option("--kubernetes", is_flag=True, help="Engines are pods with the label neuron-pd/role."),
    click.option("--kubernetes-namespace", default="", metavar="NAME", help="Their namespace. [the proxy's own]"),
    click.option("--kubernetes-selector", default="", metavar="LABELS", help="Further labels that they have."),
    click.option("--linger-seconds", default=60.0, show_default=True, type=click.FloatRange(0), metavar="SECONDS",
                 help="How long what an engine holds is still read after it left its pool."),
)  # fmt: skip
def pools(
    prefill: Sequence[str],
    decode: Sequence[str],
    prefiller_hosts: Sequence[str],
    prefiller_ports: Sequence[str],
    decoder_hosts: Sequence[str],
    decoder_ports: Sequence[str],
    kv_host: Sequence[str],
    pools_file: Path | None,
    kubernetes: bool,
    kubernetes_namespace: str,
    kubernetes_selector: str,
    linger_seconds: float,
) -> "Pools":
    from neuron_pd.proxy.engines import Role
    from neuron_pd.proxy.pools.kubernetes import Kubernetes
    from neuron_pd.proxy.pools.names import SCHEME, Names
    from neuron_pd.proxy.settings import Pools
    from neuron_pd.proxy.targets import from_options

    if not kubernetes and (kubernetes_namespace or kubernetes_selector):
        raise UsageError("--kubernetes-namespace and --kubernetes-selector say where to look: add --kubernetes")
    given = {
        Role.PREFILL: [*prefill, *from_hosts("prefiller", prefiller_hosts, prefiller_ports, 8100)],
        Role.DECODE: [*decode, *from_hosts("decoder", decoder_hosts, decoder_ports, 8200)],
    }
    names = [Names.parse(role, url) for role, urls in given.items() for url in urls if url.startswith(SCHEME)]
    plain = [[url for url in urls if not url.startswith(SCHEME)] for urls in given.values()]
    found = tuple(Role) if pools_file or kubernetes else {name.role for name in names}
    sources = (*names, *([Kubernetes(kubernetes_namespace, kubernetes_selector)] if kubernetes else ()))
    return Pools(
        *from_options(plain[0], plain[1], kv_host, found),
        sources=sources,
        file=pools_file,
        linger=linger_seconds,
    )


@topic(
    "Choice of engines",
    click.option("--balance-abs-threshold", default=32, show_default=True, type=click.IntRange(0), metavar="N",
                 help="A conversation leaves a decode engine with N requests more than the least loaded one,"),
    click.option("--balance-rel-threshold", default=1.5, show_default=True, type=click.FloatRange(1), metavar="X",
                 help="and X times as many."),
    click.option("--direct", default="off", show_default=True, type=click.Choice(("off", "auto", "always")),
                 help="Skip P where D holds the history: never, where that is expected to be faster, whenever it can."),
)  # fmt: skip
def choice(balance_abs_threshold: int, balance_rel_threshold: float, direct: str) -> "Choice":
    from neuron_pd.proxy.engines import Balance
    from neuron_pd.proxy.settings import Choice
    from neuron_pd.proxy.ways import Direct

    return Choice(Balance(balance_abs_threshold, balance_rel_threshold), Direct(direct))


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
