import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from neuron_pd.launcher import processes

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_what_was_remembered_is_found_and_stopped(own_state: Path) -> None:
    with subprocess.Popen(SLEEP) as child:
        started = processes.remember(child.pid, "server", "prefill", 8100)
        assert list(processes.running()) == [started]
        assert (own_state / "neuron-pd" / "processes").stat().st_mode & 0o077 == 0
        assert processes.stop(started, grace=10)
        assert child.wait() == -signal.SIGTERM
    assert not list(processes.running())
    assert not processes.is_remembered(started)


def test_a_stubborn_process_is_killed_with_its_family() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        grandchild = psutil.Process(int(child.stdout.readline()))
        started = processes.remember(child.pid, "server", "prefill", 8100)
        assert processes.stop(started, grace=0.2)
        assert child.wait() == -signal.SIGKILL
    assert not processes.is_alive(grandchild)


def test_an_ended_process_is_forgotten(own_state: Path) -> None:
    with subprocess.Popen(SLEEP) as child:
        started = processes.remember(child.pid, "server", "prefill", 8100)
        child.kill()
    assert not list(processes.running())
    assert not list(own_state.rglob("*.json"))
    assert not processes.stop(started, grace=1)


def test_a_pid_that_went_to_another_process_is_left_alone(own_state: Path) -> None:
    with subprocess.Popen(SLEEP) as child:
        started = processes.remember(child.pid, "server", "prefill", 8100)
        (path,) = own_state.rglob("*.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "created": started.created - 1}))
        assert not list(processes.running())
        assert child.poll() is None
        child.kill()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "colour": 2}'])
def test_a_broken_entry_is_forgotten(text: str, own_state: Path) -> None:
    directory = own_state / "neuron-pd" / "processes"
    directory.mkdir(parents=True)
    (directory / "1.json").write_text(text)
    assert not list(processes.running())
    assert not list(directory.iterdir())


def test_this_process_keeps_its_identity() -> None:
    started = processes.remember(os.getpid(), "server", "prefill", 8100)
    process = started.process()
    assert process is not None
    assert process.pid == os.getpid()
