"""Every file of launch/ that a command makes is what the command makes today."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.launch_assets.tools import LAUNCH, neuron_pd, tool

MADE = re.compile(r"\A# Made by: neuron-pd (.*)\n")
FILES = sorted(path for path in LAUNCH.rglob("*") if path.is_file() and MADE.match(path.read_text()))


def test_there_are_some() -> None:
    assert {path.name for path in FILES} >= {"values.yaml", "compose.yaml"}


def test_docker_reads_the_compose_file() -> None:
    version = subprocess.run([tool("docker"), "compose", "version"], capture_output=True, check=False)
    if version.returncode:
        pytest.skip("docker compose is not here")
    command = [tool("docker"), "compose", "--file", LAUNCH / "compose.yaml", "config", "--quiet"]
    subprocess.run(command, env={**os.environ, "NEURON_PD_CONTROL_TOKEN_FILE": "/dev/null"}, check=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(LAUNCH)))
def test_it_is_up_to_date(path: Path) -> None:
    first, _, rest = path.read_text().partition("\n")
    argv = shlex.split(first.partition("neuron-pd ")[2])
    assert rest == neuron_pd(*argv), f"make it anew: (echo '{first}'; neuron-pd {shlex.join(argv)}) > {path}"
