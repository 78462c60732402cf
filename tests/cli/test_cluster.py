import pytest
import yaml

from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell

shell = shell_fixture
IMAGE = ("--image", "neuron-pd:cpu")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "say which container image has vLLM and neuron-pd: --image"),
        ([*IMAGE, "--format", "yaml"], "unknown format 'yaml': use k8s, helm or compose"),
        ([*IMAGE, "--model", "qwen"], "qwen is no model for a cluster: give a hub's owner/name"),
        ([*IMAGE, "--model", "./qwen"], "./qwen is no model for a cluster"),
        ([*IMAGE, "--name", "Qwen_3"], "--name 'Qwen_3' is no name for Kubernetes"),
        ([*IMAGE, "--format", "compose", "--proxies", "2"], "for more use --format k8s"),
        ([*IMAGE, "--nodes", "2"], "an engine spans nodes on CUDA with tensor parallelism only"),
        (
            [*IMAGE, "--instance", "p5.48xlarge", "--model", "zai-org/GLM-5-FP8", "--", "-tp", "8"],
            "GLM-5-FP8 at tensor parallel 8 does not fit",
        ),
    ],
)
def test_wrong_input(argv: list[str], message: str, shell: Shell) -> None:
    assert message in shell.refused("cluster", *argv)


def test_the_same_flags_reach_both_roles_and_no_file_is_made(shell: Shell) -> None:
    result = shell.run(
        "cluster", *IMAGE, "--instance", "cpu", "--format", "compose", "--cpu-cores", "3", "--", "--seed", "7"
    )
    services = yaml.safe_load(result.stdout)["services"]
    for role in ("prefill", "decode"):
        assert services[role]["command"][-2:] == ["--seed", "7"]
        assert services[role]["environment"]["OMP_NUM_THREADS"] == "3"
    assert not list(shell.home.rglob("control-token"))


def test_the_proxys_image_may_be_another(shell: Shell) -> None:
    result = shell.run("cluster", *IMAGE, "--instance", "cpu", "--proxy-image", "small:1")
    images = {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]["containers"][0]["image"]
        for document in yaml.safe_load_all(result.stdout)
        if document["kind"] == "Deployment"
    }
    assert (images["neuron-pd-proxy"], images["neuron-pd-prefill"]) == ("small:1", "neuron-pd:cpu")
