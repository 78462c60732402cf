"""docs/launch.md has every option, and the commands of the pages for real machines are what `launch` takes."""

import re
import subprocess
from pathlib import Path

import pytest

from neuron_pd.cli.launch import command
from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell, program
from tests.docs.pages import blocks
from tests.hosts.machines import install

shell = shell_fixture
DOCS = Path(__file__).parents[2] / "docs"
# Two H200 types differ by their EFA devices, which the kernel of this machine does not have.
MACHINES = {"trainium.md": "trn2.48xlarge", "p5en.md": "p6-b200.48xlarge"}


def test_the_page_has_every_option_and_variable() -> None:
    page = (DOCS / "launch.md").read_text().split("### What is refused")[0]
    table = "\n".join(line for line in page.splitlines() if line.startswith("| `--"))
    documented = set(re.findall(r"`(--[a-z-]+)", table))
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {name for name in options if name.startswith("--")} == documented
    variables = {
        name for parameter in command.params for name in parameter.envvar or () if not name.startswith("NEURON_PD")
    }
    assert variables == set(re.findall(r"`([A-Z][A-Z_]+)`", table))


@pytest.mark.parametrize("page", sorted(MACHINES))
def test_the_commands_of_the_pages_run_there(page: str, shell: Shell) -> None:
    tools = install(shell.home / "tools", MACHINES[page])
    program(tools)
    path = f"{tools}:{shell.environment['PATH']}"
    lines = [line for block in blocks(DOCS / page) for line in block.splitlines()]
    run = [line for line in lines if line.startswith(("export P_IP", "neuron-pd launch")) and "--exec" not in line]
    assert sum(line.startswith("neuron-pd launch") for line in run) >= 3
    text = "\n".join(["set -euo pipefail", *run])
    result = subprocess.run(
        ["bash", "-c", text], env={**shell.environment, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
