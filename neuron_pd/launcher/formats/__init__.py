"""An engine, or several of one role, as text: for a shell, a machine, systemd, Docker or Kubernetes; and clusters."""

from collections.abc import Callable, Sequence
from typing import Final

from neuron_pd.launcher.cluster import Cluster
from neuron_pd.launcher.formats.compose import compose
from neuron_pd.launcher.formats.docker import docker
from neuron_pd.launcher.formats.json_text import as_json
from neuron_pd.launcher.formats.kubernetes import cluster_manifest, helm_values, kubernetes
from neuron_pd.launcher.formats.shell import shell
from neuron_pd.launcher.formats.systemd import systemd
from neuron_pd.launcher.serve import ServeSpec

Format = Callable[[Sequence[ServeSpec]], str]
ClusterFormat = Callable[[Cluster], str]

FORMATS: Final[dict[str, Format]] = {
    "shell": shell,
    "json": as_json,
    "systemd": systemd,
    "docker": docker,
    "k8s": kubernetes,
}
CLUSTER_FORMATS: Final[dict[str, ClusterFormat]] = {
    "k8s": cluster_manifest,
    "helm": helm_values,
    "compose": compose,
}
