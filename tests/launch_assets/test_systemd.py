"""The units of a machine image: written anew by `python -m tests.launch_assets.test_systemd`."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from neuron_pd.launcher.formats.units import PROGRAM, SETTINGS, machine_units
from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell
from tests.launch_assets.tools import LAUNCH
from tests.launcher.formats.recording import recorder
from tests.launcher.plans import free_port

shell = shell_fixture
PLACE = LAUNCH / "systemd"


def variables(path: Path) -> dict[str, str]:
    """As systemd reads a file of variables that has no quotes."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def exec_start(unit: str, instance: int) -> list[str]:
    (line,) = re.findall(r"^ExecStart=(.*)$", machine_units()[unit], re.MULTILINE)
    return shlex.split(line.replace("%i", str(instance)))


@pytest.mark.parametrize("name", sorted(machine_units()))
def test_the_files_are_what_the_launcher_makes(name: str) -> None:
    assert (PLACE / name).read_text() == machine_units()[name]


def test_systemd_accepts_them_together(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    program = tmp_path / "neuron-pd"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name, text in machine_units().items():
        # The program is not here under the image's path.
        (tmp_path / name).write_text(text.replace(PROGRAM, str(program)))
    instance = tmp_path / "neuron-pd-engine@1.service"
    instance.symlink_to(tmp_path / "neuron-pd-engine@.service")
    units = [instance, tmp_path / "neuron-pd-proxy.service", tmp_path / "neuron-pd.target"]
    result = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.vllm
def test_an_engine_of_the_machine_becomes_what_its_file_says(shell: Shell) -> None:
    recorder(shell.home / "bin")
    said = variables(PLACE / "engine.env") | {
        "P_IP": "127.0.0.1",
        "D_IP": "127.0.0.1",
        "NEURON_PD_CONTROL_TOKEN_FILE": str(shell.home / "token"),
        "NEURON_PD_LAUNCH_INSTANCE": "p5en.48xlarge",
        "NEURON_PD_LAUNCH_ENGINES": "2",
        "NEURON_PD_LAUNCH_PORT": str(free_port() - 1),  # engine 1 has the next ones
        "NEURON_PD_LAUNCH_SIDE_CHANNEL_PORT": str(free_port() - 1),
    }
    (shell.home / "token").write_text("t")
    words = ["--tensor-parallel-size", "2", "--seed", "7"]
    program, *argv = exec_start("neuron-pd-engine@.service", 1)
    assert program == PROGRAM
    assert argv.pop() == "$VLLM_ARGS"  # unquoted, systemd splits it into words
    path = f"{shell.home / 'bin'}:{shell.environment['PATH']}"
    result = shell.run(*argv, *words, PATH=path, **said)
    assert result.returncode == 0, result.stderr
    got, environment = json.loads(result.stdout)
    assert got[got.index("--port") + 1] == str(int(said["NEURON_PD_LAUNCH_PORT"]) + 1)
    assert got[got.index("--served-model-name") + 1] == said["SERVED_NAME"]
    assert (got[got.index("--seed") + 1], environment["CUDA_VISIBLE_DEVICES"]) == ("7", "2,3")


def test_the_proxy_of_the_machine_serves_what_its_file_says(shell: Shell) -> None:
    said = variables(PLACE / "proxy.env")
    unit = machine_units()["neuron-pd-proxy.service"]
    given = dict(re.findall(r"^Environment=(NEURON_PD_PROXY_\w+)=(.*)$", unit, re.MULTILINE))
    program, *argv = exec_start("neuron-pd-proxy.service", 0)
    assert program == PROGRAM
    port = str(free_port())
    given["NEURON_PD_PROXY_HOST"] = "127.0.0.1"
    engines = {"NEURON_PD_PROXY_PREFILL": "http://127.0.0.1:1 http://127.0.0.1:2",
               "NEURON_PD_PROXY_DECODE": "http://127.0.0.1:3"}  # fmt: skip
    assert engines.keys() <= said.keys()
    with shell.start(*argv, **{**said, **given, **engines, "NEURON_PD_PROXY_PORT": port}) as proxy:
        assert proxy.stdout is not None
        assert proxy.stdout.readline() == f"proxy on http://127.0.0.1:{port} : 2 prefill, 1 decode\n"
        proxy.terminate()
        assert proxy.wait(timeout=20) == 0


def test_the_journal_names_the_unit_of_each_line() -> None:
    """Which `neuron-pd logs` shows; without it all would be named after their program."""
    services = [text for name, text in machine_units().items() if name.endswith(".service")]
    assert len(services) == 2
    assert all("\nSyslogIdentifier=%N\n" in text for text in services)


def test_every_file_that_a_unit_waits_for_has_an_example() -> None:
    for text in machine_units().values():
        for path in re.findall(rf"ConditionPathExists={SETTINGS}/(\S+)", text):
            assert (PLACE / path).exists()


if __name__ == "__main__":
    for name, text in machine_units().items():
        (PLACE / name).write_text(text)
