from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from neuron_pd.launcher.cluster import HEAD, POD_IP, RANK, in_pods
from neuron_pd.launcher.formats.kubernetes import kubernetes
from neuron_pd.launcher.serve import ServeSpec, plan
from neuron_pd.proxy.pools.kubernetes import ROLE
from tests.launcher.engines import engine, request
from tests.launcher.formats.recording import hostile

VALIDATE = pytest.importorskip("kubernetes_validate")
MANY = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def manifest(*specs: ServeSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """Service and Deployment, valid by Kubernetes' own schemas."""
    service, budget, deployment = yaml.safe_load_all(kubernetes(specs))
    assert budget["spec"]["selector"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()
    for document in (service, budget, deployment):
        VALIDATE.validate(document, VALIDATE.latest_version(), strict=True)
    return service, deployment


def container_of(deployment: dict[str, Any]) -> dict[str, Any]:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def in_a_pod(instance: str, role: str = "prefill", *flags: str, **given_: Any) -> ServeSpec:
    nowhere = {"prefill_host": None, "decode_host": None}
    asked = request(instance, role, *flags, **{**nowhere, "token_file": Path("/t"), **given_})
    return plan(in_pods(asked))


def expanded(text: str, address: str) -> str:
    """As Kubernetes expands $(VAR), and $$ for a dollar that is meant."""
    return text.replace("$$(", "\0").replace(POD_IP, address).replace("\0", "$(")


def test_a_whole_trn2_node() -> None:
    service, deployment = manifest(in_a_pod("trn2.48xlarge", "decode"))
    pod, container = deployment["spec"]["template"]["spec"], container_of(deployment)
    assert container["resources"]["limits"] == {
        "memory": "1638Gi",
        "aws.amazon.com/neuron": "16",
        "vpc.amazonaws.com/efa": "16",
        "hugepages-2Mi": "5120Mi",
    }
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "trn2.48xlarge"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert service["spec"]["ports"][0]["port"] == 8200
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert {"name": "http", "containerPort": 8200} in container["ports"]
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_a_gpu_pod_takes_its_share() -> None:
    _, deployment = manifest(in_a_pod("p5en.48xlarge", "prefill", "-tp", "2"))
    limits = container_of(deployment)["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"], limits["memory"]) == ("2", "4", "409Gi")


def test_the_token_is_a_secret_and_the_id_is_vllms() -> None:
    text = kubernetes([in_a_pod("p5en.48xlarge")])
    assert "secretName: neuron-pd-control-token" in text
    assert "engine_id" not in text
    assert "engine_id" in kubernetes([in_a_pod("p5en.48xlarge", connector="upstream")])
    assert "secretName" not in kubernetes([in_a_pod("p5en.48xlarge", connector="upstream")])


def test_the_side_channel_is_on_the_pods_address() -> None:
    container = container_of(manifest(in_a_pod("trn2.48xlarge"))[1])
    variables = {item["name"]: item.get("value") for item in container["env"]}
    assert container["env"][0] == {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert variables["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "$(POD_IP)"
    assert variables["NEURON_VISIBLE_DEVICES"] == "0-7"


def test_named_nodes_use_their_own_network() -> None:
    pod = manifest(engine("trn2.48xlarge"))[1]["spec"]["template"]["spec"]
    assert pod["hostNetwork"] is True
    assert "hostNetwork" not in manifest(in_a_pod("trn2.48xlarge"))[1]["spec"]["template"]["spec"]


def test_the_proxy_finds_the_pods_by_their_label_and_port() -> None:
    template = manifest(in_a_pod("trn2.48xlarge", "decode"))[1]["spec"]["template"]
    assert template["metadata"]["labels"][ROLE] == "decode"
    (http,) = [port for port in template["spec"]["containers"][0]["ports"] if port["name"] == "http"]
    assert http["containerPort"] == 8200


def test_several_engines_are_replicas() -> None:
    specs = [in_a_pod("trn2.48xlarge") for _ in range(3)]
    assert manifest(*specs)[1]["spec"]["replicas"] == 3


def test_turns_in_flight_end_before_the_server_is_told_to() -> None:
    pod = manifest(in_a_pod("trn2.48xlarge"))[1]["spec"]["template"]["spec"]
    wait = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert 0 < wait < pod["terminationGracePeriodSeconds"]


def test_an_engine_on_two_nodes_is_a_group() -> None:
    spec = in_a_pod("p5.48xlarge", "decode", "-tp", "16", model="zai-org/GLM-5-FP8", nodes=2)
    service, budget, group = yaml.safe_load_all(kubernetes([spec, spec]))
    assert (group["kind"], group["spec"]["replicas"]) == ("LeaderWorkerSet", 2)
    assert group["metadata"]["name"] != service["metadata"]["name"]  # LeaderWorkerSet makes a Service of its own name
    template = group["spec"]["leaderWorkerTemplate"]
    assert (template["size"], template["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    for pod in (leader, worker):
        as_pod = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "x", **pod["metadata"]}}
        VALIDATE.validate(as_pod, VALIDATE.latest_version(), strict=True)
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert budget["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    # A router finds heads only.
    assert leader["metadata"]["labels"][ROLE] == "decode"
    assert service["spec"]["selector"].items() <= leader["metadata"]["labels"].items()
    assert ROLE not in worker["metadata"]["labels"]
    first, other = (pod["spec"]["containers"][0]["args"] for pod in (leader, worker))
    assert [first[first.index(flag) + 1] for flag in ("--nnodes", "--node-rank", "--master-addr")] == ["2", "0", HEAD]
    assert other[other.index("--node-rank") + 1] == RANK
    assert [*first, "--headless"] == [*other[: other.index(RANK)], "0", *other[other.index(RANK) + 1 :]]
    assert "startupProbe" not in worker["spec"]["containers"][0]
    assert f'"engine_id":"decode-{HEAD}"' in first[-1]  # both must have the same one


@MANY
@given(name=hostile, model=hostile)
def test_kubernetes_gives_what_was_meant(name: str, model: str) -> None:
    spec = in_a_pod("p5en.48xlarge", model=f"owner/{model}", served_name=f"n{name}", connector="upstream")
    container = container_of(manifest(spec)[1])
    words = [expanded(word, "10.1.2.3") for word in (*container["command"], *container["args"])]
    assert words == [word.replace(POD_IP, "10.1.2.3") for word in spec.argv()]
    variables = {item["name"]: expanded(item["value"], "10.1.2.3") for item in container["env"] if "value" in item}
    assert variables == {key: text.replace(POD_IP, "10.1.2.3") for key, text in spec.environment().items()}
