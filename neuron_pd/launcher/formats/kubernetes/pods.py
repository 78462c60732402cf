"""What the pods of one role are: the values that make one engine another than the next.

    replicas     engines
    nodes        pods of each engine; more than one form a group (LeaderWorkerSet)
    image        for all containers of the role
    ports        name to number; the first is the API's
    pod          what stands beside the containers (PodSpec)
    container    the engine (Container), without name, image and ports
    worker       what differs in the container of a group's other pods

What Kubernetes puts in when a pod runs (its address; the group's head and the pod's number, which LeaderWorkerSet sets
before the container's own variables) is written as `launcher.cluster` names it.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from neuron_pd.hosts.limits import EFA_HUGE_PAGES_MIB
from neuron_pd.launcher.cluster import HEAD, POD_IP, RANK
from neuron_pd.launcher.flags import Value
from neuron_pd.launcher.formats import container
from neuron_pd.launcher.formats.ending import DRAIN_SECONDS, STOP_SECONDS
from neuron_pd.launcher.serve import ServeSpec

Values = dict[str, Any]

SHARED_MEMORY: Final = "64Gi"
TOKEN_SECRET: Final = "neuron-pd-control-token"
MEMORY_SHARE: Final = 0.8
SMALL_HOST_GIB: Final = 128  # where the catalogue does not know better
CPU_GIB: Final = 8  # a server and the weights of an embedded model, beside the KV
RESOURCES: Final = {"cuda": "nvidia.com/gpu", "neuron": "aws.amazon.com/neuron", "neuron-nxd": "aws.amazon.com/neuron"}

# Kubernetes would set NEURON_PD_PROXY_PORT=tcp://… for a Service of that name, which is an option's variable too.
NO_SERVICE_LINKS: Final = {"enableServiceLinks": False}
READY_SECONDS: Final = 1800  # weights are loaded, graphs compiled
PROBE_SECONDS: Final = 10
DEAD_AFTER: Final = 6  # failed probes


def role_values(spec: ServeSpec, replicas: int) -> Values:
    values: Values = {
        "replicas": replicas,
        "nodes": spec.request.nodes,
        "image": container.image(spec),
        "ports": {"http": spec.port, "side-channel": spec.side_channel_port},
        "pod": _pod(spec),
        "container": _container(spec),
    }
    if spec.request.nodes > 1:
        values["worker"] = {"args": _words(spec, {"node-rank": RANK, "headless": True})}
    return values


def _pod(spec: ServeSpec) -> Values:
    pod: Values = {"terminationGracePeriodSeconds": DRAIN_SECONDS + STOP_SECONDS, **NO_SERVICE_LINKS}
    if spec.instance.hardware is not None:
        pod["nodeSelector"] = {"node.kubernetes.io/instance-type": spec.instance.name}
    if spec.request.own_host is not None:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return pod | {"volumes": [volume for volume, _ in _volumes(spec)]}


def _container(spec: ServeSpec) -> Values:
    program, _ = container.program(spec)
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PROBE_SECONDS}
    variables = container.environment(spec)
    return {
        "command": [literal(program)],
        "args": _words(spec),
        "env": [_pod_ip(), *({"name": name, "value": literal(value)} for name, value in variables.items())],
        "startupProbe": {**probe, "failureThreshold": READY_SECONDS // PROBE_SECONDS},
        "readinessProbe": probe,
        "livenessProbe": {**probe, "timeoutSeconds": PROBE_SECONDS, "failureThreshold": DEAD_AFTER},
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "resources": {"requests": _resources(spec), "limits": _resources(spec)},
        "volumeMounts": [mount for _, mount in _volumes(spec)],
    }


def _words(spec: ServeSpec, changed: Mapping[str, Value] | None = None) -> list[str]:
    _, words = container.program(replace(spec, flags={**spec.flags, **(changed or {})}))
    return [literal(word) for word in words]


def _pod_ip() -> Values:
    return {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def literal(text: str) -> str:
    """Kubernetes puts variables in for $(NAME); only those named here are meant to be one."""
    text = text.replace("$(", "$$(")
    for meant in (POD_IP, HEAD, RANK):
        text = text.replace(f"${meant}", meant)
    return text


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
        resources["vpc.amazonaws.com/efa"] = str(max(1, int(hardware.efa * share)))
        resources["hugepages-2Mi"] = f"{EFA_HUGE_PAGES_MIB}Mi"
    return resources


def _volumes(spec: ServeSpec) -> list[tuple[Values, Values]]:
    """(volume, its mount): shared memory between vLLM's processes, the control token, a model's directory."""
    shared: Values = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}}
    found: list[tuple[Values, Values]] = [(shared, {"name": "shm", "mountPath": "/dev/shm"})]
    if spec.request.ours:
        found.append(token_volume())
    if directory := container.model_directory(spec):
        model = {"name": "model", "hostPath": {"path": directory, "type": "Directory"}}
        found.append((model, {"name": "model", "mountPath": directory, "readOnly": True}))
    return found


def token_volume() -> tuple[Values, Values]:
    secret = {"name": "control-token", "secret": {"secretName": TOKEN_SECRET}}
    place = str(Path(container.TOKEN_PATH).parent)
    return secret, {"name": "control-token", "mountPath": place, "readOnly": True}
