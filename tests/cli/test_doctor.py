"""`neuron-pd doctor` as a person runs it."""

import json
import subprocess
from importlib.util import find_spec
from typing import Any

import pytest

from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell, program
from tests.docs.pages import ROOT, commands
from tests.hosts.machines import install
from tests.launcher.plans import free_port

shell = shell_fixture
needs_engine = pytest.mark.skipif(find_spec("nixl") is None, reason="the CPU profile needs NIXL")


def findings(text: str) -> dict[str, dict[str, Any]]:
    return {finding["probe"]: finding for finding in json.loads(text)["findings"]}


@pytest.mark.vllm
@needs_engine
def test_a_plain_machine_lacks_accelerators_and_is_ready_for_the_cpu_profile(shell: Shell) -> None:
    result = shell.run("doctor", "--instance", "cpu", "--no-self-test")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("profile cpu: ready (")
    for lacking in ("EFA devices", "Neuron devices", "GPUs"):
        (line,) = [line for line in lines if line.startswith(f"not applicable {lacking}: ")]
        assert "a machine of kind cpu needs none" in line
    assert any(line.startswith("ok             NIXL backend UCX") for line in lines)


def test_json_and_what_fails_is_status_1(shell: Shell) -> None:
    result = shell.run("doctor", "--instance", "trn2.48xlarge", "--role", "decode", "--json", "--timeout", "30")
    assert (result.returncode, result.stderr) == (1, "")
    body = json.loads(result.stdout)
    assert (body["ready"], body["of"]) == (False, ["profile trn2.48xlarge as decode"])
    found = findings(result.stdout)
    assert found["Neuron devices"]["verdict"] == "failed"
    assert "modprobe neuron" in found["Neuron devices"]["fix"]
    assert found["GPUs"]["verdict"] == "not applicable"
    assert all(one["fix"] for one in body["findings"] if one["verdict"] in ("failed", "warning"))


def test_a_cluster_that_is_not_there(shell: Shell) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = shell.run("doctor", "--url", url)
    assert (result.returncode, result.stderr) == (1, "")
    assert f"failed         proxy {url}: no answer: connection refused" in result.stdout
    assert result.stdout.splitlines()[-1].startswith(f"{url}: not ready")
    assert "EFA" not in result.stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--role", "router"], "'router' is not one of 'prefill', 'decode', 'proxy'"),
        (["--url", "127.0.0.1:8000"], "'127.0.0.1:8000' is not a URL: write it like http://127.0.0.1:8000"),
        (["--instance", "p99.metal"], "unknown instance 'p99.metal'"),
        (["--api-key-env", "NO_SUCH_KEY"], "--api-key-env NO_SUCH_KEY: that variable is empty"),
        (["--timeout", "0"], "0 is not in the range"),
        (["--timeout", "inf"], "'inf' is not a valid integer"),
        (["--url", "http://[::1"], "'http://[::1' is not a URL"),
        (["--decode", "http://127.0.0.1:99999"], "'http://127.0.0.1:99999' is not a URL"),
        (["--url", "http://:8000"], "'http://:8000' is not a URL"),
        (["--url", "http://a b"], "'http://a b' is not a URL"),
    ],
)
def test_what_is_typed_wrong(shell: Shell, argv: list[str], message: str) -> None:
    assert message in shell.refused("doctor", *argv)


def test_a_password_in_a_url_is_not_shown(shell: Shell) -> None:
    message = shell.refused("doctor", "--url", "http://me:hunter2@127.0.0.1:1")
    assert "leave user and password out" in message
    assert "hunter2" not in message


def test_a_token_file_that_cannot_be_read(shell: Shell) -> None:
    message = shell.refused("doctor", "--url", "http://127.0.0.1:1", NEURON_PD_CONTROL_TOKEN_FILE="/nowhere/token")
    assert "cannot read the control token from /nowhere/token" in message


@pytest.mark.parametrize(("page", "instance"), [("trainium.md", "trn2.48xlarge"), ("p5en.md", "p6-b200.48xlarge")])
def test_the_pages_commands_are_understood(page: str, instance: str, shell: Shell) -> None:
    """They find faults here, where the node's libraries are missing; they know which machine they are on."""
    tools = install(shell.home / "tools", instance)
    run = [one.bare for one in commands(ROOT / "docs" / page) if one.text.startswith("neuron-pd doctor")]
    assert len(run) == 2
    program(tools)
    environment = {**shell.environment, "PATH": f"{tools}:{shell.environment['PATH']}"}
    for line, about in zip(run, (f"profile {instance} as prefill", "http://127.0.0.1"), strict=True):
        command = line.replace(":8000", f":{free_port()}")  # whoever is on that port here
        result = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (1, ""), result.stdout
        assert result.stdout.splitlines()[-1].startswith(about)
