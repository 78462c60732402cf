"""Prefill engines, decode engines and proxies that serve one model together, on machines that are not known yet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from neuron_pd.errors import UsageError
from neuron_pd.hosts.addresses import ANY, PROXY_PORT
from neuron_pd.launcher.cores import format_cores
from neuron_pd.launcher.request import Request
from neuron_pd.launcher.serve import ServeSpec, plan
from neuron_pd.profiles import ROLES

# Kubernetes puts in what is not known before a pod runs: its address, and what LeaderWorkerSet says of its group.
POD_IP: Final = "$(POD_IP)"
HEAD: Final = "$(LWS_LEADER_ADDRESS)"
RANK: Final = "$(LWS_WORKER_INDEX)"
NETWORK: Final = "172.30.113.0/24"  # of containers on one machine
ADDRESSES: Final = {"prefill": "172.30.113.10", "decode": "172.30.113.20"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`prefill` and `decode` stand for as many engines as the numbers say. Names of objects begin with `name`."""

    name: str
    prefill: ServeSpec
    decode: ServeSpec
    prefill_engines: int = 1
    decode_engines: int = 1
    proxies: int = 1
    proxy_port: int = PROXY_PORT
    proxy_image: str

    @property
    def engines(self) -> Sequence[ServeSpec]:
        return (self.prefill, self.decode)


def in_pods(request: Request) -> Request:
    """The engine where Kubernetes puts it, unless its node was named."""
    if request.own_host is not None:
        return request
    return replace(
        request,
        host=request.host or ANY,
        side_channel_host=request.side_channel_host or POD_IP,
        head_host=HEAD if request.nodes > 1 else None,
    )


def in_containers(request: Request) -> Request:
    """The engine in a container of one machine without accelerators, beside the other role's."""
    if request.profiles.instance(request.instance).hardware is not None:
        raise UsageError(f"compose is for one machine without accelerators: for {request.instance} use --format k8s")
    return replace(request, prefill_host=ADDRESSES["prefill"], decode_host=ADDRESSES["decode"])


def plan_pair(request: Request, cores: int) -> tuple[ServeSpec, ServeSpec]:
    """Prefill and decode, alike but for their role. Without accelerators each gets `cores` CPU cores of its own."""
    prefill, decode = (plan(_with_cores(replace(request, role=role), cores)) for role in ROLES)
    return prefill, decode


def _with_cores(request: Request, cores: int) -> Request:
    if request.profiles.instance(request.instance).hardware is not None:
        return request
    first = ROLES.index(request.role) * cores
    return replace(request, cores=format_cores(range(first, first + cores)))
