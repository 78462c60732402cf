import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell
from tests.launcher.plans import free_port, left_of

shell = shell_fixture
SCRIPTS = Path(__file__).parents[2] / "launch"
RECORDER = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def until_healthy(port: int) -> None:
    """Ask until it answers; the test's own time limit is the bound."""
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/health").close()
        except (URLError, ConnectionError):
            continue
        return


def test_the_printed_lines_run_as_they_are(shell: Shell) -> None:
    text = shell.run("launch", "--role", "prefill", "--model", shell.model(), "--", "--seed", "7").stdout
    recorded = text.replace(
        f"{shlex.quote(sys.executable)} -m vllm", f"{sys.executable} -c {shlex.quote(RECORDER)} vllm"
    )
    result = subprocess.run(["bash", "-euo", "pipefail", "-c", recorded], capture_output=True, check=True)
    argv, environment = json.loads(result.stdout)
    assert argv[argv.index("--model") + 1] == shell.model()
    assert argv[-2:] == ["--seed", "7"]
    token = Path(environment["NEURON_PD_CONTROL_TOKEN_FILE"])
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text().strip() not in text


def test_json_and_the_environment_variables_of_the_article(shell: Shell) -> None:
    variables = {"ROLE": "decode", "BIDIR": "false", "MODEL": shell.model(), "SERVED_NAME": "Qwen", "D_IP": "10.0.0.2"}
    body = json.loads(shell.run("launch", "--format", "json", **variables).stdout)
    argv, environment = body["argv"], body["env"]
    assert argv[argv.index("--served-model-name") + 1] == "Qwen"
    assert argv[argv.index("--host") + 1] == environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.2"
    config = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    assert config["kv_role"] == "kv_consumer"
    assert config["kv_connector_extra_config"]["bidirectional_kv_xfer"] is False


@pytest.mark.parametrize(
    ("argv", "bidir"), [(["--bidir"], True), (["--bidir", "false"], False), (["--no-bidir"], False)]
)
def test_bidir(argv: list[str], bidir: bool, shell: Shell) -> None:
    result = shell.run("launch", "--role", "prefill", "--format", "json", "--model", shell.model(), *argv)
    config = json.loads(json.loads(result.stdout)["argv"][-1])
    assert config["kv_connector_extra_config"]["bidirectional_kv_xfer"] is bidir


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "say --role prefill or decode"),
        (["--role", "both"], "unknown role 'both': use prefill or decode"),
        (["--role", "decode", "--instance", "abacus"], "unknown instance 'abacus': use cpu"),
        (["--role", "decode", "--model", "/none"], "there is no model directory /none"),
        (["--role", "decode", "--bidir", "perhaps"], "--bidir is 'perhaps': use true or false"),
        (["--role", "decode", "--format", "yaml"], "unknown format 'yaml': use shell, json, systemd, docker or k8s"),
        (["--role", "decode", "--model", "a/b", "--cores", "x"], "'x' is not a list of cores"),
        (["--role", "decode", "--model", "a/b", "--retention", "x"], "unknown retention 'x': use lease or pin"),
    ],
)
def test_wrong_input(argv: list[str], message: str, shell: Shell) -> None:
    assert message in shell.refused("launch", *argv)


def test_without_vllm_nothing_is_started(shell: Shell) -> None:
    blocker = "import sys\nsys.modules['vllm'] = None\n"
    (shell.home / "sitecustomize.py").write_text(blocker)
    argv = ("launch", "--role", "prefill", "--model", shell.model(), "--exec")
    line = shell.refused(*argv, PYTHONPATH=str(shell.home))
    assert line == "vLLM is not installed here: run `pip install 'neuron-pd[cpu]'`"


@pytest.mark.vllm
@pytest.mark.parametrize("script", [False, True])
def test_exec_becomes_the_server_and_cleanup_finds_it(script: bool, shell: Shell) -> None:
    port = free_port()
    options = ("--instance", shell.instance(), "--model", shell.model(), "--port", str(port),
               "--side-channel-port", str(free_port()))  # fmt: skip
    if script:
        server = shell.start(*options, command=(str(SCRIPTS / "serve_pd_multiturn.sh"),), ROLE="decode")
    else:
        server = shell.start("launch", "--role", "decode", "--exec", *options)
    with server:
        until_healthy(port)
        assert server.pid in {process.pid for process in left_of(shell.home)}
        taken = shell.refused("launch", "--role", "decode", "--exec", *options)
        assert f"port {port}, which decode (its port) needs, is in use by pid {server.pid} (" in taken
        assert shell.run("cleanup", "proxy").stdout == "nothing to stop\n"
        grace = ("--grace", "0.5")
        command = (str(SCRIPTS / "cleanup.sh"),) if script else None
        stopped = shell.run("server", *grace, command=command) if command else shell.run("cleanup", "server", *grace)
        assert stopped.stdout == f"stopped decode (pid {server.pid}, port {port})\n"
        assert server.wait() == -signal.SIGTERM


@pytest.mark.vllm
def test_one_port_for_both_purposes(shell: Shell) -> None:
    port = str(free_port())
    argv = (
        "launch",
        "--role",
        "decode",
        "--exec",
        "--model",
        shell.model(),
        "--port",
        port,
        "--side-channel-port",
        port,
    )
    assert f"are both on port {port}" in shell.refused(*argv)


def test_the_sweep_script_passes_on_what_it_is_told(shell: Shell) -> None:
    tools = shell.home / "bin"
    tools.mkdir()
    recorder = tools / "neuron-pd"
    recorder.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    recorder.chmod(0o755)
    result = shell.run(
        "--lengths", "1k", command=(str(SCRIPTS / "run_multiturn_sweep.sh"),),
        PATH=f"{tools}:{os.environ['PATH']}", LEG="on", P_IP="10.0.0.1", SERVED_NAME="Qwen",
    )  # fmt: skip
    assert result.stdout.split() == [
        "bench", "sweep", "--leg", "on", "--url", "http://127.0.0.1:8000", "--prefill-url", "http://10.0.0.1:8100",
        "--decode-url", "http://127.0.0.1:8200", "--model", "Qwen", "--lengths", "1k",
    ]  # fmt: skip


def test_the_serve_script_asks_for_a_role(shell: Shell) -> None:
    result = shell.run(command=(str(SCRIPTS / "serve_pd_multiturn.sh"),))
    assert result.returncode != 0
    assert "set ROLE=prefill or ROLE=decode" in result.stderr
