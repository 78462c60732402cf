"""The chart makes the manifests of `neuron-pd cluster`, which are those of `neuron-pd launch` for each role."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launch_assets.tools import LAUNCH, helm, neuron_pd

CHART = LAUNCH / "helm" / "neuron-pd"
VALIDATE = pytest.importorskip("kubernetes_validate")
CLUSTERS: dict[str, list[str]] = {
    "cpu": ["--instance", "cpu"],
    "p5en": ["--instance", "p5en.48xlarge", "--model", "Qwen/Qwen3-32B", "--decode-engines", "3", "--proxies", "2"],
    "trn2": ["--instance", "trn2.48xlarge", "--model", "openai/gpt-oss-20b", "--proxy-image", "small:1"],
    "staged": ["--instance", "trn2.3xlarge", "--model", "Qwen/Qwen3-8B"],
    "upstream": ["--instance", "p5en.48xlarge", "--model", "/models/Qwen3-32B", "--connector", "upstream"],
    "two nodes": ["--instance", "p5.48xlarge", "--model", "zai-org/GLM-5-FP8", "--nodes", "2", "--", "-tp", "16"],
}
Objects = dict[tuple[str, str], dict[str, Any]]


def objects(text: str) -> Objects:
    documents = [document for document in yaml.safe_load_all(text) if document]
    found = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(found) == len(documents)
    return found


def template(name: str, values: Path, *options: str) -> Objects:
    command = [helm(), "template", name, CHART, "--values", values, *options]
    return objects(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def cluster(format_: str, *argv: str) -> str:
    return neuron_pd("cluster", "--image", "example.com/neuron-pd:1", "--format", format_, *argv)


@pytest.mark.parametrize("argv", CLUSTERS.values(), ids=CLUSTERS)
def test_the_chart_makes_what_the_launcher_prints(argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(cluster("helm", "--name", "qwen", *argv))
    printed = objects(cluster("k8s", "--name", "qwen", *argv))
    assert template("qwen", tmp_path / "values.yaml") == printed
    for (kind, _), document in printed.items():
        if kind != "LeaderWorkerSet":  # its pods are checked in tests/launcher/formats/test_kubernetes.py
            VALIDATE.validate(document, VALIDATE.latest_version(), strict=True)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_clusters_roles_are_those_of_launch(role: str) -> None:
    argv = ["--instance", "trn2.48xlarge", "--model", "Qwen/Qwen3-32B", "--image", "example.com/neuron-pd:1"]
    alone = objects(neuron_pd("launch", "--role", role, "--format", "k8s", *argv))
    whole = objects(cluster("k8s", *argv))
    assert set(alone) == {(kind, f"neuron-pd-{role}") for kind in ("Service", "PodDisruptionBudget", "Deployment")}
    assert alone.items() <= whole.items()


def test_what_the_chart_leaves_to_people(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump(
            {
                "prefill": {
                    "replicas": 4,
                    "image": "mine:2",
                    "extraArgs": ["--seed", "7"],
                    "extraEnv": [{"name": "HF_HOME", "value": "/cache"}],
                    "pod": {"tolerations": [{"operator": "Exists"}]},
                }
            }
        )
    )
    made = template("neuron-pd", CHART / "values.yaml", "--values", str(tmp_path / "own.yaml"))
    deployment = made["Deployment", "neuron-pd-prefill"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert (deployment["replicas"], container["image"]) == (4, "mine:2")
    assert container["args"][-2:] == ["--seed", "7"]
    assert {"name": "HF_HOME", "value": "/cache"} in container["env"]
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["volumes"]  # the rest of the pod stays


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("prefill.image=", "say which image the prefill has: prefill.image"),
        ("prefil.replicas=2", "prefil"),
        ("decode.replica=2", "replica"),
        ("proxy.nodes=2", "nodes"),
    ],
)
def test_values_that_cannot_be_meant(value: str, message: str) -> None:
    command = [helm(), "template", "x", CHART, "--set", value]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert message in result.stderr


def test_the_chart_passes_helms_own_check() -> None:
    subprocess.run([helm(), "lint", "--strict", CHART], capture_output=True, check=True)


def test_the_charts_version_is_the_programs() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f"version {chart['appVersion']}\n" in neuron_pd("--version")
