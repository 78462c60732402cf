"""A compose file: both engines and the proxy in containers of one machine without accelerators.

Compose puts variables in for $NAME and ${NAME}; the only one that is meant is the control token's file.
"""

from typing import Any, Final

from neuron_pd.core.control import TOKEN_FILE_ENV
from neuron_pd.errors import UsageError
from neuron_pd.hosts.addresses import ANY, HERE
from neuron_pd.launcher.cluster import NETWORK, Cluster
from neuron_pd.launcher.formats import container
from neuron_pd.launcher.formats.yaml_text import dump, remarks
from neuron_pd.launcher.proxying import SHARED_CORES_ACQUIRE_SECONDS, ProxyCommand
from neuron_pd.launcher.serve import ServeSpec

Service = dict[str, Any]

TOKEN: Final = "control-token"
SHARED_MEMORY: Final = "1gb"
READY: Final = "import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=5)"
START_SECONDS: Final = 600


def compose(cluster: Cluster) -> str:
    """UsageError for several engines of a role: they are for Kubernetes."""
    if max(cluster.prefill_engines, cluster.decode_engines, cluster.proxies, cluster.prefill.request.nodes) > 1:
        raise UsageError("compose runs one engine of each role and one proxy: for more use --format k8s")
    path = f"${{{TOKEN_FILE_ENV}:?the file that holds the control token}}"
    body = {
        "name": cluster.name,
        "services": {**{spec.role: _engine(spec) for spec in cluster.engines}, "proxy": _proxy(cluster)},
        "networks": {"default": {"ipam": {"config": [{"subnet": NETWORK}]}}},
        "secrets": {TOKEN: {"file": path}},
    }
    return remarks(cluster.engines) + dump([body])


def _engine(spec: ServeSpec) -> Service:
    """Its address is fixed: NIXL's side channel listens on an address, not on a name."""
    program, words = container.program(spec)
    service: Service = {
        "image": _literal(container.image(spec)),
        "entrypoint": [_literal(program)],
        "command": [_literal(word) for word in words],
        "environment": {name: _literal(value) for name, value in container.environment(spec).items()},
        "networks": {"default": {"ipv4_address": spec.side_channel_host}},
        "shm_size": SHARED_MEMORY,
        "cap_add": ["IPC_LOCK"],
        "ulimits": {"memlock": -1},
        "healthcheck": _healthy(f"{spec.url}/health"),
        "secrets": _secret(),
        "restart": "unless-stopped",
    }
    if directory := container.model_directory(spec):
        place = _literal(directory)
        service["volumes"] = [{"type": "bind", "source": place, "target": place, "read_only": True}]
    return service


def _proxy(cluster: Cluster) -> Service:
    port = cluster.proxy_port
    command = ProxyCommand(
        python="python3",
        prefill=[cluster.prefill.url],
        decode=[cluster.decode.url],
        host=ANY,
        port=port,
        acquire_timeout=SHARED_CORES_ACQUIRE_SECONDS,
    )
    program, *words = command.argv()
    return {
        "image": _literal(cluster.proxy_image),
        "entrypoint": [program],
        "command": words,
        "environment": {TOKEN_FILE_ENV: container.TOKEN_PATH},
        "ports": [f"{HERE}:{port}:{port}"],
        "depends_on": {spec.role: {"condition": "service_healthy"} for spec in cluster.engines},
        "healthcheck": _healthy(f"http://{HERE}:{port}/ready"),
        "secrets": _secret(),
        "restart": "unless-stopped",
    }


def _healthy(url: str) -> dict[str, Any]:
    return {
        "test": ["CMD", "python3", "-c", READY, url],
        "interval": "10s",
        "timeout": "6s",
        "start_period": f"{START_SECONDS}s",
        "start_interval": "2s",
    }


def _secret() -> list[dict[str, str]]:
    return [{"source": TOKEN, "target": container.TOKEN_PATH}]


def _literal(text: str) -> str:
    return text.replace("$", "$$")
