"""Kubernetes: one role, or a whole cluster, as manifests and as values of the Helm chart in `launch/helm`.

What differs from one engine to the next is in the values (`pods.py`, `services.py`); what all have in common is in the
objects around them (`objects.py`), which the chart's templates make just so.
"""

from collections.abc import Sequence
from typing import Final

from neuron_pd.launcher.cluster import Cluster
from neuron_pd.launcher.formats.kubernetes.objects import proxy_objects, redis_objects, role_objects
from neuron_pd.launcher.formats.kubernetes.pods import Values, role_values
from neuron_pd.launcher.formats.kubernetes.services import proxy_values, redis_values
from neuron_pd.launcher.formats.yaml_text import dump, remarks
from neuron_pd.launcher.serve import ServeSpec
from neuron_pd.profiles import ROLES

NAME: Final = "neuron-pd"  # of the objects, where no cluster has another


def kubernetes(specs: Sequence[ServeSpec]) -> str:
    """The manifest of one role. Several engines are replicas."""
    spec = specs[0]
    return remarks([spec]) + dump(role_objects(NAME, spec.role, role_values(spec, len(specs))))


def cluster_manifest(cluster: Cluster) -> str:
    """Both roles, the proxies and their store."""
    values = cluster_values(cluster)
    objects = [made for role in ROLES for made in role_objects(cluster.name, role, values[role])]
    objects += proxy_objects(cluster.name, values["proxy"]) + redis_objects(cluster.name, values["redis"])
    return remarks(cluster.engines) + dump(objects)


def helm_values(cluster: Cluster) -> str:
    """Values of the chart: `helm template` makes the objects of `cluster_manifest` of them."""
    return remarks(cluster.engines) + dump([cluster_values(cluster)])


def cluster_values(cluster: Cluster) -> Values:
    return {
        "prefill": role_values(cluster.prefill, cluster.prefill_engines),
        "decode": role_values(cluster.decode, cluster.decode_engines),
        "proxy": proxy_values(cluster),
        "redis": redis_values(),
    }
