"""The values of what stands beside the engines: the proxy, and the store that its replicas share."""

from typing import Final

from neuron_pd.core.control import TOKEN_FILE_ENV
from neuron_pd.hosts.addresses import ANY
from neuron_pd.launcher.cluster import Cluster
from neuron_pd.launcher.formats.container import TOKEN_PATH
from neuron_pd.launcher.formats.ending import DRAIN_SECONDS
from neuron_pd.launcher.formats.kubernetes.pods import NO_SERVICE_LINKS, PROBE_SECONDS, Values, token_volume
from neuron_pd.launcher.proxying import ProxyCommand

CLUSTER_ENV: Final = "NEURON_PD_CLUSTER"  # the cluster's name in the proxy's pod; the objects around the values set it
REDIS_IMAGE: Final = "valkey/valkey:8.1-alpine"
REDIS_PORT: Final = 6379
ENDPOINT_SECONDS: Final = 5  # until no Service sends new connections to a pod that is to go
NOBODY: Final = 65534
SMALL: Final = {"cpu": "100m", "memory": "1Gi"}
ONE_CORE: Final = {"cpu": "1", "memory": "1Gi"}
CONFINED: Final = {
    "runAsNonRoot": True,
    "runAsUser": NOBODY,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def proxy_values(cluster: Cluster) -> Values:
    volume, mount = token_volume()
    argv = ProxyCommand(
        python="python3",
        host=ANY,
        port=cluster.proxy_port,
        kubernetes_selector=f"app.kubernetes.io/instance=$({CLUSTER_ENV})",
        store=f"redis://$({CLUSTER_ENV})-redis:{REDIS_PORT}/0",
        drain_seconds=DRAIN_SECONDS,
    ).argv()
    return {
        "replicas": cluster.proxies,
        "image": cluster.proxy_image,
        "ports": {"http": cluster.proxy_port},
        "pod": {
            "terminationGracePeriodSeconds": ENDPOINT_SECONDS + DRAIN_SECONDS + 10,
            **NO_SERVICE_LINKS,
            "volumes": [volume],
        },
        "container": {
            "command": argv[:1],
            "args": argv[1:],
            # A directory that nobody may write to is no home; the proxy keeps its state there.
            "env": [{"name": TOKEN_FILE_ENV, "value": TOKEN_PATH}, {"name": "XDG_STATE_HOME", "value": "/tmp"}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 2},
            "livenessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PROBE_SECONDS},
            "lifecycle": {"preStop": {"sleep": {"seconds": ENDPOINT_SECONDS}}},
            "securityContext": CONFINED,
            "resources": {"requests": ONE_CORE, "limits": {"memory": "4Gi"}},
            "volumeMounts": [mount],
        },
    }


def redis_values() -> Values:
    """What is lost with it costs prefills, so it keeps nothing on a disk."""
    keep_nothing = ["--save", "", "--appendonly", "no", "--maxmemory", "768mb", "--maxmemory-policy", "allkeys-lru"]
    return {
        "replicas": 1,
        "image": REDIS_IMAGE,
        "ports": {"redis": REDIS_PORT},
        "pod": NO_SERVICE_LINKS,
        "container": {
            "command": ["valkey-server"],
            "args": ["--port", str(REDIS_PORT), *keep_nothing],
            "readinessProbe": {"tcpSocket": {"port": "redis"}, "periodSeconds": PROBE_SECONDS},
            "livenessProbe": {"tcpSocket": {"port": "redis"}, "periodSeconds": PROBE_SECONDS},
            "securityContext": {**CONFINED, "readOnlyRootFilesystem": True},
            "resources": {"requests": SMALL, "limits": {"memory": "1Gi"}},
        },
    }
