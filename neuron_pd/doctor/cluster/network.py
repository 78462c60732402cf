"""Between the engines: the side channels on which they ask each other for memory, and their clocks."""

from collections.abc import Iterable
from typing import Final

from neuron_pd.doctor.cluster.place import Cluster, Engine
from neuron_pd.doctor.findings import Finding, failed, not_applicable, ok, probe, warning
from neuron_pd.doctor.reach import SECONDS, reach
from neuron_pd.hosts.addresses import EVERYWHERE, HERE, LOOPBACK

SKEW_SECONDS: Final = 2.0  # HTTP dates count whole seconds
GROUP: Final = "a security group that allows all traffic from and to itself"


@probe("Cluster", "side channels", f"give `launch --prefill-host` and `--decode-host` the nodes' addresses; {GROUP}")
def side_channels(cluster: Cluster) -> Iterable[Finding]:
    """the address of every engine's side channel: no localhost where the engines are on several hosts, and reachable"""
    hosts = {HERE if engine.host in LOOPBACK else engine.host for engine in cluster.engines}
    for engine, info in cluster.known:
        host, option = info.side_channel_host, f"give `launch --{engine.role}-host` this node's own address"
        if not host:
            yield not_applicable("this version does not say where its side channel is", engine.name)
        elif host in EVERYWHERE:
            seen = f"its side channel is on {host}: only our proxy puts {engine.host} in the place of that"
            yield warning(seen, option, engine.name)
        elif host not in LOOPBACK or hosts == {HERE}:
            yield _channels(engine, host, info.side_channel_port, option, cluster.seconds)
        elif len(hosts) > 1:
            yield failed(f"its side channel is on {host}, where no other host reaches it", option, engine.name)
        else:
            yield ok(f"on {host}: all engines are on {engine.host}", engine.name)


@probe("Cluster", "clocks", "keep them by NTP: `sudo timedatectl set-ntp true`")
def clocks(cluster: Cluster) -> Iterable[Finding]:
    """the engines' clocks beside this machine's, by the dates of their answers: logs are read side by side"""
    known = [(engine, engine.skew) for engine in cluster.engines if engine.skew is not None]
    for engine, skew in known:
        if abs(skew) > SKEW_SECONDS:
            ahead = "ahead of" if skew > 0 else "behind"
            seen = f"its clock is {abs(skew):.0f} s {ahead} this machine's"
            yield warning(seen, "keep both by NTP: `sudo timedatectl set-ntp true`", engine.name)
    if known and all(abs(skew) <= SKEW_SECONDS for _, skew in known):
        yield ok(f"within {SKEW_SECONDS:g} s of this machine's")


PROBES: Final = (side_channels, clocks)


def _channels(engine: Engine, host: str, first: int, option: str, seconds: float) -> Finding:
    """Whether each data-parallel rank's port can be reached from here."""
    for port in range(first, first + engine.ranks):
        if why := reach(host, port, min(seconds, SECONDS)):
            seen = f"its side channel on {host}:{port} cannot be reached from here: {why}"
            return failed(seen, f"{option}; {GROUP}", engine.name)
    more = f" and {engine.ranks - 1} more" if engine.ranks > 1 else ""
    return ok(f"on {host}:{first}{more}, and reachable", engine.name)
