"""The addresses that the two roles meet on, their ports, and the clock."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from neuron_pd.doctor.ask import CannotReach, ask
from neuron_pd.doctor.findings import Finding, failed, not_applicable, ok, probe, warning
from neuron_pd.doctor.reach import NOWHERE, REFUSED, is_here, reach
from neuron_pd.doctor.site import ENGINE_ROLES, Site
from neuron_pd.errors import PortInUse, UsageError
from neuron_pd.hosts.addresses import ANY, HERE, PROXY_PORT
from neuron_pd.hosts.ports import check_port_free, listener

HOST: Final = "VLLM_NIXL_SIDE_CHANNEL_HOST"
VARIABLES: Final = {"prefill": "P_IP", "decode": "D_IP"}


@probe("Network", "side-channel host", "give `--prefill-host` (P_IP) and `--decode-host` (D_IP) the nodes' addresses")
def side_channel(site: Site) -> Iterable[Finding]:
    """the address under which the other role asks for this engine's memory: this machine's, and not localhost"""
    if site.role not in ENGINE_ROLES:
        yield not_applicable("say --role, --prefill-host and --decode-host to look at it")
        return
    peer = next(role for role in ENGINE_ROLES if role != site.role)
    own, other = site.environ.get(HOST) or site.hosts.get(site.role), site.hosts.get(peer)
    option = f"--{site.role}-host ({VARIABLES[site.role]})"
    if own is None and other is None:
        yield not_applicable("no address was said: both roles are on this machine, on 127.0.0.1")
    elif own is None or (own in NOWHERE and other not in NOWHERE):
        yield failed(f"{own or '127.0.0.1'}, which {peer} cannot reach", f"give {option} this node's address")
    elif not is_here(own):
        yield failed(f"{own} is not an address of this machine", f"give {option} this node's own address")
    else:
        yield ok(f"{own}, an address of this machine")
    if other is not None and other not in NOWHERE:
        yield _reach(site, peer, other)


@probe("Network", "ports", "stop the holder, or choose another port")
def ports(site: Site) -> Iterable[Finding]:
    """the role's ports, by its instance's profile: free, or of an engine or a proxy that is up"""
    wanted = [(port, f"{role}'s API") for role in site.roles if (port := site.instance.roles[role].port)]
    for role in site.roles:
        settings = site.instance.roles[role]
        shared = settings.shared_side_channel_port if len(site.roles) > 1 and role == "decode" else None
        wanted.append((shared or settings.side_channel_port, f"{role}'s side channel"))
    if site.role is None or not site.runs_engines:
        wanted.append((PROXY_PORT, "the proxy"))
    free = []
    for port, purpose in wanted:
        try:
            check_port_free(ANY, port, purpose)
            free.append(port)
        except PortInUse as error:
            yield _in_use(site, port, purpose, error)
        except UsageError as error:
            yield warning(str(error), "choose another port", str(port))
    if free:
        yield ok(f"free: {', '.join(map(str, free))}")


@probe("Network", "clock", "`sudo timedatectl set-ntp true` (chrony on EC2: server 169.254.169.123)")
def clock(site: Site) -> Finding:
    """whether the clock is kept by NTP, as `timedatectl` or `chronyc` say: logs of two nodes are read side by side"""
    asked = site.run("timedatectl", "show", "--property=NTPSynchronized", "--value")
    if asked is not None and asked.status == 0 and asked.out.strip() in ("yes", "no"):
        if asked.out.strip() == "yes":
            return ok("kept by NTP")
        return warning("not kept by NTP", "`sudo timedatectl set-ntp true`")
    asked = site.run("chronyc", "-n", "tracking")
    if asked is None or asked.status != 0:
        return not_applicable("neither timedatectl nor chronyc says whether it is kept by NTP")
    if "Not synchronised" in asked.out:
        return warning("chrony is not synchronised", "look at `chronyc sources`; on EC2: server 169.254.169.123")
    return ok("kept by chrony")


PROBES: Final = (side_channel, ports, clock)


def _reach(site: Site, peer: str, host: str) -> Finding:
    port = site.instance.roles[peer].side_channel_port
    if why := reach(host, port):
        if why == REFUSED:
            return ok(f"{host} answers; {peer} does not listen on port {port} yet", host)
        fix = "same subnet, and a security group that allows all traffic from and to itself"
        return failed(f"{peer}'s side channel on {host}:{port} cannot be reached: {why}", fix, host)
    return ok(f"{peer}'s side channel on {host}:{port} answers", host)


def _answers(site: Site, port: int) -> bool:
    """Whether a server is up there; one that was given its node's address listens on no other."""
    for host in {HERE, site.hosts.get(site.role or "", HERE)}:
        with suppress(CannotReach):
            if ask(f"http://{host}:{port}", "/health", seconds=2.0).status == 200:
                return True
    return False


def _in_use(site: Site, port: int, purpose: str, error: PortInUse) -> Finding:
    """An engine or a proxy of ours is what is to be there; anything else is in the way."""
    if listener(port) in site.ours or (purpose.endswith(("API", "proxy")) and _answers(site, port)):
        return ok(f"{purpose} is up on it", str(port))
    what, _, fix = str(error).rpartition(": ")
    return (warning if site.role is None else failed)(what, fix, str(port))
