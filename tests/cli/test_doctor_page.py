"""The commands of docs/doctor.md, as they stand there, in a home with the logs of a run."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell, program
from tests.docs.pages import ROOT, commands
from tests.launcher.plans import free_port

shell = shell_fixture
COMMANDS = [command.bare for command in commands(ROOT / "docs" / "doctor.md")]


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("nixl") is None, reason="the doctor looks at an engine's packages")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_pages_commands_do_what_they_say(command: str, shell: Shell) -> None:
    run = shell.home / "state" / "neuron-pd" / "runs" / "1"
    run.mkdir(parents=True)
    (run / "prefill.log").write_text("WARNING 11-30 10:59:38 [x.py:1] KV Transfer metrics: path=read_back\n")
    tools = shell.home / "bin"
    tools.mkdir()
    program(tools)
    (tools / "journalctl").write_text(f"#!/bin/sh\ncat {run}/*.log\n")
    (tools / "journalctl").chmod(0o755)
    kinds = {"NEURON_PD_DOCTOR_INSTANCE": "cpu", "NEURON_PD_REPORT_INSTANCE": "cpu"}  # whatever this machine is
    environment = {**shell.environment, **kinds, "PATH": f"{tools}:{shell.environment['PATH']}"}
    # Nobody is on that port, and what is followed has an end.
    line = command.replace(":8000", f":{free_port()}").replace(" --follow", "")
    done = subprocess.run(
        ["bash", "-c", line], cwd=shell.home, env=environment, capture_output=True, text=True, check=False
    )
    assert "error" not in done.stderr
    assert done.returncode == (1 if "doctor --url" in command else 0), done.stdout
    if "logs" in command:
        assert ("read_back" in done.stdout) is ("--declines" not in command)
    elif "report" in command:
        assert Path(done.stdout.strip()).is_file()
    else:
        assert "ready (" in done.stdout
