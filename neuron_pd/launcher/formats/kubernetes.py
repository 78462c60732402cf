"""A Deployment and a Service for each role, with the resources that EFA and the accelerators need.

A pod's own address is not known before it runs: `POD_IP` stands for it, and Kubernetes puts it in.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from neuron_pd.launcher.formats import container
from neuron_pd.launcher.formats.shell import comments
from neuron_pd.launcher.serve import ServeSpec

POD_IP: Final = "$(POD_IP)"
HUGE_PAGES: Final = "5120Mi"  # EFA's buffers
SHARED_MEMORY: Final = "64Gi"
TOKEN_SECRET: Final = "neuron-pd-control-token"
READY_SECONDS: Final = 1800
PROBE_SECONDS: Final = 10
MEMORY_SHARE: Final = 0.8
SMALL_HOST_GIB: Final = 128  # where the catalogue does not know better
CPU_GIB: Final = 8  # a server and the weights of an embedded model, beside the KV
RESOURCES: Final = {"cuda": "nvidia.com/gpu", "neuron": "aws.amazon.com/neuron", "neuron-nxd": "aws.amazon.com/neuron"}


def kubernetes(specs: Sequence[ServeSpec]) -> str:
    """The manifest. Several engines are replicas of one Deployment."""
    spec = specs[0]
    notes = "".join(f"{comment}\n" for comment in comments(container.remarks(spec)))
    documents = [_service(spec), _deployment(spec, len(specs))]
    return notes + yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)


class _Plain(yaml.SafeDumper):
    """Writes a mapping out each time: anchors are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _name(spec: ServeSpec) -> str:
    return f"neuron-pd-{spec.role}"


def _labels(spec: ServeSpec) -> dict[str, str]:
    """The last is what `neuron-pd proxy --kubernetes` looks for."""
    return {
        "app.kubernetes.io/name": "neuron-pd",
        "app.kubernetes.io/component": spec.role,
        "neuron-pd/role": spec.role,
    }


def _service(spec: ServeSpec) -> dict[str, Any]:
    """Headless: a router knows engines one by one."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _name(spec), "labels": _labels(spec)},
        "spec": {
            "clusterIP": "None",
            "selector": _labels(spec),
            "ports": [{"name": "http", "port": spec.port}, {"name": "side-channel", "port": spec.side_channel_port}],
        },
    }


def _deployment(spec: ServeSpec, replicas: int) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": _name(spec), "labels": _labels(spec)},
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": _labels(spec)},
            "template": {"metadata": {"labels": _labels(spec)}, "spec": _pod(spec)},
        },
    }


def _pod(spec: ServeSpec) -> dict[str, Any]:
    pod: dict[str, Any] = {"terminationGracePeriodSeconds": 60, "containers": [_container(spec)]}
    if spec.instance.hardware is not None:
        pod["nodeSelector"] = {"node.kubernetes.io/instance-type": spec.instance.name}
    if spec.request.own_host is not None:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    pod["volumes"] = [volume for volume, _ in _volumes(spec)]
    return pod


def _container(spec: ServeSpec) -> dict[str, Any]:
    program, words = container.program(spec)
    probe = {"httpGet": {"path": "/health", "port": spec.port}, "periodSeconds": PROBE_SECONDS}
    variables = container.environment(spec)
    return {
        "name": "engine",
        "image": container.image(spec),
        "command": [_literal(program)],
        "args": [_literal(word) for word in words],
        "env": [_pod_ip(), *({"name": name, "value": _literal(value)} for name, value in variables.items())],
        "ports": [
            {"name": "http", "containerPort": spec.port},
            {"name": "side-channel", "containerPort": spec.side_channel_port},
        ],
        "startupProbe": {**probe, "failureThreshold": READY_SECONDS // PROBE_SECONDS},
        "readinessProbe": probe,
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "resources": {"requests": _resources(spec), "limits": _resources(spec)},
        "volumeMounts": [mount for _, mount in _volumes(spec)],
    }


def _pod_ip() -> dict[str, Any]:
    return {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _literal(text: str) -> str:
    """Kubernetes puts variables in for $(NAME); only the pod's address is meant to be one."""
    return text.replace("$(", "$$(").replace(f"${POD_IP}", POD_IP)


def _resources(spec: ServeSpec) -> dict[str, str]:
    """A GPU pod takes its GPUs and their share of the rest.

    A Neuron pod takes the whole node: NEURON_VISIBLE_DEVICES counts the machine's cores, whichever devices it is given.
    """
    hardware = spec.instance.hardware
    if hardware is None:
        return {"memory": f"{spec.kv_cache_gib + CPU_GIB}Gi"}
    devices = hardware.devices if spec.instance.is_neuron else len(container.accelerators(spec))
    share = devices / hardware.devices
    resources = {
        "memory": f"{int((hardware.host_gib or SMALL_HOST_GIB) * MEMORY_SHARE * share)}Gi",
        RESOURCES[spec.instance.accelerator]: str(devices),
    }
    if hardware.efa:
        resources |= {"vpc.amazonaws.com/efa": str(max(1, int(hardware.efa * share))), "hugepages-2Mi": HUGE_PAGES}
    return resources


def _volumes(spec: ServeSpec) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(volume, its mount): shared memory between vLLM's processes, the control token, a model's directory."""
    shared: dict[str, Any] = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}
    found: list[tuple[dict[str, Any], dict[str, Any]]] = [(shared, {"name": "shm", "mountPath": "/dev/shm"})]
    if spec.request.ours:
        secret = {"name": "control-token", "secret": {"secretName": TOKEN_SECRET}}
        place = str(Path(container.TOKEN_PATH).parent)
        found.append((secret, {"name": "control-token", "mountPath": place, "readOnly": True}))
    if Path(spec.model).is_dir():
        model = {"name": "model", "hostPath": {"path": spec.model, "type": "Directory"}}
        found.append((model, {"name": "model", "mountPath": spec.model, "readOnly": True}))
    return found
