import json
import os
import shutil
import subprocess
import sys

import psutil
import pytest

from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell

shell = shell_fixture
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def entry(shell: Shell, pid: int, created: float, kind: str) -> None:
    directory = shell.home / "state" / "neuron-pd" / "processes"
    directory.mkdir(parents=True, exist_ok=True)
    body = {"pid": pid, "created": created, "kind": kind, "name": kind, "port": 1}
    (directory / f"{pid}.json").write_text(json.dumps(body))


def test_nothing_was_started(shell: Shell) -> None:
    result = shell.run("cleanup", "all")
    assert (result.returncode, result.stdout, result.stderr) == (0, "nothing to stop\n", "")


def test_an_unknown_thing(shell: Shell) -> None:
    assert shell.refused("cleanup", "desk") == "unknown 'desk': clean up proxy, server or all"


def test_what_to_stop_must_be_said(shell: Shell) -> None:
    assert "Missing argument" in shell.refused("cleanup")


def test_only_what_was_started_and_only_that_kind(shell: Shell) -> None:
    with subprocess.Popen(SLEEP) as server, subprocess.Popen(SLEEP) as proxy, subprocess.Popen(SLEEP) as other:
        entry(shell, server.pid, psutil.Process(server.pid).create_time(), "server")
        entry(shell, proxy.pid, psutil.Process(proxy.pid).create_time(), "proxy")
        entry(shell, other.pid, psutil.Process(other.pid).create_time() - 60, "server")  # the pid's earlier owner
        entry(shell, os.getpid(), 0, "proxy")
        assert shell.run("cleanup", "server").stdout == f"stopped server (pid {server.pid}, port 1)\n"
        assert server.wait() != 0
        assert proxy.poll() is None
        assert other.poll() is None
        assert shell.run("cleanup", "all").stdout == f"stopped proxy (pid {proxy.pid}, port 1)\n"
        assert proxy.wait() != 0
        assert other.poll() is None
        other.kill()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip")
def test_what_a_killed_run_left_of_its_link(shell: Shell) -> None:
    with subprocess.Popen(SLEEP) as ended:
        ended.kill()
    subprocess.run(["ip", "netns", "add", f"npd-{ended.pid}-1-decode"], check=True)
    assert "network namespaces that a killed run left" in shell.run("cleanup", "server").stdout
    assert (
        f"npd-{ended.pid}-1-decode"
        not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    )
