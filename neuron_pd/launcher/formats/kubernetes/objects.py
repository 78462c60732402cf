"""The objects around the values. `launch/helm/neuron-pd/templates` makes the same ones."""

from collections.abc import Iterator
from typing import Any, Final

from neuron_pd.launcher.formats.kubernetes.pods import Values
from neuron_pd.launcher.formats.kubernetes.services import CLUSTER_ENV

Object = dict[str, Any]

ROLE: Final = "neuron-pd/role"  # what `neuron-pd proxy --kubernetes` looks for
SERVING: Final = ("startupProbe", "readinessProbe", "livenessProbe", "ports")


def role_objects(name: str, role: str, values: Values) -> list[Object]:
    """A Service, a PodDisruptionBudget, and a Deployment; a LeaderWorkerSet where an engine spans several pods."""
    head = _labels(name, role) | {ROLE: role}
    workload = _deployment(name, role, values, head) if values["nodes"] == 1 else _group(name, role, values, head)
    return [_service(name, role, values, head, headless=True), _budget(name, role), workload]


def proxy_objects(name: str, values: Values) -> list[Object]:
    """Service, PodDisruptionBudget, Deployment, and the right to see pods."""
    labels = _labels(name, "proxy")
    deployment = _deployment(name, "proxy", values, labels)
    template = deployment["spec"]["template"]["spec"]
    template["serviceAccountName"] = f"{name}-proxy"
    (container,) = template["containers"]
    container["env"] = [{"name": CLUSTER_ENV, "value": name}, *container["env"]]
    return [*_account(name), _service(name, "proxy", values, labels), _budget(name, "proxy"), deployment]


def redis_objects(name: str, values: Values) -> list[Object]:
    """Service, Deployment, and the rule that only proxies reach it: it names engines and handles."""
    labels = _labels(name, "redis")
    return [_service(name, "redis", values, labels), _only_proxies(name), _deployment(name, "redis", values, labels)]


def _labels(name: str, component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "neuron-pd",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": component,
    }


def _meta(name: str, component: str, suffix: str = "") -> Object:
    return {"name": f"{name}-{component}{suffix}", "labels": _labels(name, component)}


def _service(name: str, component: str, values: Values, selector: dict[str, str], headless: bool = False) -> Object:
    """Headless for engines: a router knows them one by one."""
    ports = [{"name": port, "port": number} for port, number in values["ports"].items()]
    spec: Object = {"selector": selector, "ports": ports}
    if headless:
        spec["clusterIP"] = "None"
    return {"apiVersion": "v1", "kind": "Service", "metadata": _meta(name, component), "spec": spec}


def _budget(name: str, component: str) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _meta(name, component),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(name, component)}},
    }


def _deployment(name: str, component: str, values: Values, labels: dict[str, str]) -> Object:
    """Engines are replaced, not rolled: no node is free for one more."""
    spec: Object = {
        "replicas": values["replicas"],
        "selector": {"matchLabels": labels},
        "template": _template(component, values, labels, {}),
    }
    if "nodes" in values:
        spec["strategy"] = {"type": "Recreate"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _meta(name, component), "spec": spec}


def _group(name: str, role: str, values: Values, head: dict[str, str]) -> Object:
    """LeaderWorkerSet makes a Service of its own name, so it has another name than ours. Routers see heads only."""
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _meta(name, role, "-group"),
        "spec": {
            "replicas": values["replicas"],
            "leaderWorkerTemplate": {
                "size": values["nodes"],
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _template(role, values, head, {}),
                "workerTemplate": _template(role, values, _labels(name, role), values["worker"]),
            },
        },
    }


def _template(component: str, values: Values, labels: dict[str, str], changed: Values) -> Object:
    """A group's other pods differ in `changed`, and serve nothing: they have no API server."""
    container = {
        "name": component,
        "image": values["image"],
        **values["container"],
        "ports": [{"name": port, "containerPort": number} for port, number in values["ports"].items()],
        **changed,
    }
    if changed:
        container = {key: value for key, value in container.items() if key not in SERVING}
    return {"metadata": {"labels": labels}, "spec": {**values["pod"], "containers": [container]}}


def _account(name: str) -> Iterator[Object]:
    meta = _meta(name, "proxy")
    group = "rbac.authorization.k8s.io"
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    yield {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": [pods]}
    yield {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": meta["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": meta["name"]}],
    }


def _only_proxies(name: str) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(name, "redis"),
        "spec": {
            "podSelector": {"matchLabels": _labels(name, "redis")},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": _labels(name, "proxy")}}]}],
        },
    }
