import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell
from tests.launcher.plans import free_port, left_of, until_none_left

shell = shell_fixture
pytestmark = pytest.mark.vllm  # `up` refuses to start anything without vLLM

PORTS = ("proxy-port", "prefill-port", "decode-port", "prefill-side-channel-port", "decode-side-channel-port")


def ports(**given: int) -> list[str]:
    chosen = {name: given.get(name.replace("-", "_")) or free_port() for name in PORTS}
    return [text for name, port in chosen.items() for text in (f"--{name}", str(port))]


@contextmanager
def running(shell: Shell, **variables: str) -> "Iterator[subprocess.Popen[str]]":
    """`up` with stand-ins for the engines and the real proxy, ready."""
    argv = ["up", "--model", shell.model(), "--instance", shell.instance(), "--run-dir", str(shell.home / "run")]
    argv += ["--stop-timeout", "1"]
    with shell.start(*argv, *ports(), **variables) as up:
        assert up.stdout is not None
        assert up.stdout.readline().startswith("http://127.0.0.1:")
        yield up


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_stop_it_stops_everything(number: int, shell: Shell) -> None:
    with running(shell) as up:
        assert {path.name for path in (shell.home / "run").iterdir()} == {"prefill.log", "decode.log", "proxy.log"}
        up.send_signal(number)
        _, stderr = up.communicate()
    assert up.returncode == 0, stderr
    assert "Traceback" not in stderr
    for phase in ("prefill: starting", "decode: ready", "proxy: ready", "proxy: stopped"):
        assert phase in stderr
    assert not left_of(shell.home)


def test_killed_it_takes_everything_along(shell: Shell) -> None:
    with running(shell) as up:
        up.kill()
    until_none_left(shell.home)


def test_the_death_of_an_engine_ends_it(shell: Shell) -> None:
    with running(shell) as up:
        (engine,) = (
            process for process in left_of(shell.home)
            if "stand_in.py" in " ".join(process.cmdline()) and "prefill-" in " ".join(process.cmdline())
            and "tether" not in " ".join(process.cmdline())
        )  # fmt: skip
        engine.send_signal(signal.SIGSEGV)
        _, stderr = up.communicate()
    assert up.returncode == 1
    line = stderr.splitlines()[-1]
    log = shell.home / "run" / "prefill.log"
    assert line == f"neuron-pd: error: prefill ended (killed by SIGSEGV): serving; its log is {log}"
    assert not left_of(shell.home)


def test_interrupted_during_the_start(shell: Shell) -> None:
    argv = ["up", "--model", shell.model(), "--instance", shell.instance(), *ports(), "--stop-timeout", "1"]
    with shell.start(*argv, STAND_IN_DELAY="600") as up:
        assert up.stderr is not None
        while "prefill: starting" not in up.stderr.readline():
            pass
        up.send_signal(signal.SIGINT)
        stdout, stderr = up.communicate()
    assert up.returncode == 128 + signal.SIGINT
    assert (stdout, "Traceback" in stderr) == ("", False)
    assert not left_of(shell.home)


def test_cleanup_stops_one_after_the_other(shell: Shell) -> None:
    with running(shell) as up:
        proxy = shell.run("cleanup", "proxy").stdout
        assert proxy.startswith("stopped proxy (pid ")
        assert up.poll() is None
        servers = shell.run("cleanup", "server").stdout
        assert [line.split()[1] for line in sorted(servers.splitlines())] == ["decode", "prefill"]
        up.communicate()
    assert up.returncode == 0
    assert shell.run("cleanup", "all").stdout == "nothing to stop\n"


def test_a_port_in_use(shell: Shell) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        line = shell.refused("up", "--model", shell.model(), *ports(decode_side_channel_port=taken))
    assert f"port {taken}, which decode (its side channel) needs, is in use by pid " in line


def test_two_on_one_port(shell: Shell) -> None:
    port = free_port()
    line = shell.refused("up", "--model", shell.model(), *ports(prefill_port=port, decode_port=port))
    assert line == f"prefill (its port) and decode (its port) are both on port {port}: give one of them another"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "/none"], "there is no model directory /none"),
        (["--model", "owner/name"], "there is no model directory owner/name"),
        (["--instance", "abacus"], "unknown instance 'abacus'"),
        (["--kv-cache-gib", "1000000"], "too little memory: prefill and decode need "),
        (["--max-model-len", "9999"], "some-model can do 4096 tokens: lower --max-model-len 9999"),
        (["--run-dir", "/dev/null/run"], "cannot write the logs to /dev/null/run"),
    ],
)
def test_wrong_input_starts_nothing(argv: list[str], message: str, shell: Shell) -> None:
    line = shell.refused("up", "--model", shell.model(), *ports(), *argv)
    assert message in line
    assert not list(Path(shell.home).rglob("*.log"))
