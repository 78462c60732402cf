"""P and D on this machine as if they were two machines: each in its own end of an emulated link, the proxy outside."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from neuron_pd.launcher.cores import available_cores, format_cores, halves
from neuron_pd.launcher.flags import KV_TRANSFER
from neuron_pd.launcher.link import DEVICE, PATH, End, Link
from neuron_pd.launcher.serve import ServeSpec, serve_spec
from neuron_pd.launcher.state import new_run_dir, token_file
from neuron_pd.launcher.topology import Child, Topology

# Shared memory would pass by the link, as the two namespaces have it in common.
TRANSPORTS: Final = "tcp,self"


@dataclass(frozen=True, slots=True)
class LinkedTopology:
    """A topology whose engines run inside a link's namespaces."""

    topology: Topology
    link: Link

    @property
    def run_dir(self) -> Path:
        return self.topology.run_dir

    def stages(self) -> Sequence[Sequence[Child]]:
        (prefill, decode), *rest = self.topology.stages()
        return [[_inside(prefill, self.link.prefill), _inside(decode, self.link.decode)], *rest]

    def urls(self) -> Mapping[str, str]:
        return self.topology.urls()

    def token(self) -> str | None:
        return self.topology.token()


def linked_topology(
    model: str | Path,
    link: Link,
    *,
    proxy_port: int,
    run_dir: Path | None = None,
    threshold: str | None = None,
    **engine: Any,
) -> LinkedTopology:
    """As `cpu_topology`, on both ends of `link`; P keeps no prefix cache, as if conversations had been evicted.

    `threshold` is `kv_recompute_threshold`, a number of tokens or `auto`.
    """
    token = token_file()
    cores = [format_cores(half) for half in halves(available_cores())]
    shared = {**engine, "token_file": token}
    engines = [
        _with_threshold(
            serve_spec(
                role,
                str(model),
                host=end.api,
                side_channel_host=end.data,
                cores=own,
                prefix_caching=role == "decode",
                **shared,
            ),
            threshold,
        )
        for role, end, own in (("prefill", link.prefill, cores[0]), ("decode", link.decode, cores[1]))
    ]
    place = run_dir or new_run_dir()
    return LinkedTopology(Topology(engines[0], engines[1], "127.0.0.1", proxy_port, place, token), link)


def _with_threshold(spec: ServeSpec, threshold: str | None) -> ServeSpec:
    if threshold is None:
        return spec
    config = spec.kv_transfer_config()
    value = int(threshold) if threshold.isdecimal() else threshold
    extra = {**config["kv_connector_extra_config"], "kv_recompute_threshold": value}
    return replace(spec, flags={**spec.flags, KV_TRANSFER: {**config, "kv_connector_extra_config": extra}})


def _inside(child: Child, end: End) -> Child:
    """The same process in a namespace, where it finds its addresses and no other way to its peer."""
    enter = (shutil.which("ip", path=PATH) or "ip", "netns", "exec", end.namespace)
    network = {
        "UCX_TLS": TRANSPORTS,
        "UCX_NET_DEVICES": DEVICE,
        # What vLLM's own processes meet on; the machine's name resolves to an address that is not in here.
        "VLLM_HOST_IP": end.data,
        "GLOO_SOCKET_IFNAME": DEVICE,
    }
    return replace(child, argv=[*enter, *child.argv], environment={**child.environment, **network})
