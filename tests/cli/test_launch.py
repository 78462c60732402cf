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
from tests.hosts.machines import install
from tests.launcher.formats.recording import recorder
from tests.launcher.plans import free_port, left_of
from tests.profiles.making import MODEL, write

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


@pytest.mark.parametrize("instance", ["p6-b200.48xlarge", "trn2.48xlarge", "trn2.3xlarge"])
def test_the_instance_is_detected(instance: str, shell: Shell) -> None:
    path = f"{install(shell.home / 'tools', instance)}:{shell.environment['PATH']}"
    argv = ("launch", "--role", "prefill", "--model", "Qwen/Qwen3-8B", "--format", "json")
    body = json.loads(shell.run(*argv, P_IP="10.0.0.1", D_IP="10.0.0.2", PATH=path).stdout)
    assert any(f"has not run on {instance} yet" in note for note in body["notes"])
    assert ("NEURON_VISIBLE_DEVICES" in body["env"]) is instance.startswith("trn2")


def test_a_machine_without_an_accelerator_is_a_cpu(shell: Shell) -> None:
    body = json.loads(shell.run("launch", "--role", "prefill", "--model", shell.model(), "--format", "json").stdout)
    assert "VLLM_CPU_KVCACHE_SPACE" in body["env"]


@pytest.mark.parametrize("format_", ["shell", "json", "systemd", "docker", "k8s"])
def test_every_format_has_the_same_facts_and_no_secret(format_: str, shell: Shell) -> None:
    token = shell.home / "token"
    token.write_text("very-secret")
    argv = (
        "launch",
        "--role",
        "decode",
        "--instance",
        "trn2.48xlarge",
        "--model",
        "Qwen/Qwen3-32B",
        "--format",
        format_,
    )
    result = shell.run(*argv, D_IP="10.0.0.2", P_IP="10.0.0.1", NEURON_PD_CONTROL_TOKEN_FILE=str(token))
    assert result.returncode == 0, result.stderr
    for fact in ("FI_EFA_ENABLE_SHM_TRANSFER", "VLLM_NEURON_SKIP_PREFILL_WARMUP", "0-7", "10.0.0.2", "5659", "8200",
                 "LIBFABRIC", "num_seqs_buckets", "neuron_pd.connector.control.ControlPath"):  # fmt: skip
        assert fact in result.stdout
    assert "very-secret" not in result.stdout
    secret = shell.run(*argv, D_IP="10.0.0.2", P_IP="10.0.0.1", NEURON_PD_CONTROL_TOKEN="very-secret")
    assert "very-secret" not in secret.stdout


def test_several_engines_or_one_of_them(shell: Shell) -> None:
    argv = ("launch", "--role", "prefill", "--instance", "trn2.48xlarge", "--model", "Qwen/Qwen3-8B", "--engines", "4",
            "--format", "json")  # fmt: skip
    nodes = {"P_IP": "10.0.0.1", "D_IP": "10.0.0.2"}
    bodies = json.loads(shell.run(*argv, **nodes).stdout)
    assert [body["env"]["NEURON_VISIBLE_DEVICES"] for body in bodies] == ["0-3", "4-7", "8-11", "12-15"]
    one = json.loads(shell.run(*argv, "--index", "2", **nodes).stdout)
    assert one["env"] == bodies[2]["env"]
    assert shell.refused(*argv, "--exec", **nodes) == "--exec becomes one of 4 engines: say which with --index"


def test_a_profile_of_ones_own(shell: Shell) -> None:
    write(shell.home, "mine", "model", {**MODEL, "targets": {"trn2.48xlarge": {"tensor_parallel_size": 16}}})
    argv = ("launch", "--role", "prefill", "--instance", "trn2.48xlarge", "--model", "owner/Small-1B-Instruct",
            "--profile", str(shell.home / "mine.yaml"), "--format", "json")  # fmt: skip
    body = json.loads(shell.run(*argv, P_IP="10.0.0.1", D_IP="10.0.0.2").stdout)
    assert body["env"]["NEURON_VISIBLE_DEVICES"] == "0-15"
    assert body["argv"][body["argv"].index("--seed") + 1] == "1"
    (shell.home / "mine.yaml").write_text("kind: model\nname: x\ncolour: red\n")
    assert "mine.yaml" in shell.refused(*argv, P_IP="10.0.0.1", D_IP="10.0.0.2")


@pytest.mark.vllm
def test_the_serve_script_runs_the_articles_command(shell: Shell) -> None:
    recorder(shell.home / "bin")
    variables = {"ROLE": "prefill", "BIDIR": "false", "MODEL": "Qwen/Qwen3-32B", "SERVED_NAME": "Qwen"}
    script, flags = str(SCRIPTS / "serve_pd_multiturn.sh"), ("--", "--tensor-parallel-size", "4")
    options = ("--instance", "p5en.48xlarge", "--connector", "upstream", "--port", str(free_port()),
               "--side-channel-port", str(free_port()))  # fmt: skip
    result = shell.run(*options, *flags, command=(script,), PATH=f"{shell.home / 'bin'}:{shell.environment['PATH']}",
                       P_IP="127.0.0.1", D_IP="127.0.0.1", **variables)  # fmt: skip
    argv, environment = json.loads(result.stdout)
    assert argv[:3] == ["serve", "Qwen/Qwen3-32B", "--served-model-name"]
    assert "--no-enable-prefix-caching" in argv
    assert environment["FI_PROVIDER"] == "efa"
    config = json.loads(argv[-1])
    assert (config["kv_role"], config["kv_connector_extra_config"]["bidirectional_kv_xfer"]) == ("kv_producer", False)


def test_a_proxy_that_was_started_by_hand_is_cleaned_up(shell: Shell) -> None:
    port = free_port()
    engines = ("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2")
    with shell.start("proxy", *engines, "--port", str(port)) as proxy:
        assert proxy.stdout is not None
        assert str(port) in proxy.stdout.readline()
        stopped = shell.run("proxy", command=(str(SCRIPTS / "cleanup.sh"),))
        assert stopped.stdout == f"stopped proxy (pid {proxy.pid}, port {port})\n"
        assert proxy.wait() == 0


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
        "--model", "Qwen", "--lengths", "1k",
    ]  # fmt: skip


def test_the_serve_script_asks_for_a_role(shell: Shell) -> None:
    result = shell.run(command=(str(SCRIPTS / "serve_pd_multiturn.sh"),))
    assert result.returncode != 0
    assert "set ROLE=prefill or ROLE=decode" in result.stderr
