"""The commands of the pages about launch/ are what the programs take."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

from neuron_pd.cli.cluster import command
from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell
from tests.launch_assets.tools import ROOT

shell = shell_fixture
DOCS = ROOT / "docs"
PAGES = ("kubernetes.md", "hosts.md", "images.md")


def test_the_files_that_the_pages_name_are_there() -> None:
    for page in PAGES:
        named = re.findall(r"\b(launch/[\w./-]*\w)", (DOCS / page).read_text())
        assert [path for path in named if not (ROOT / path).exists()] == []


def test_user_data_names_what_the_example_of_the_unit_names() -> None:
    (document,) = re.findall(r"```yaml\n(#cloud-config\n.*?)```", (DOCS / "images.md").read_text(), re.DOTALL)
    (file,) = yaml.safe_load(document)["write_files"]
    example = (ROOT / "launch/systemd" / Path(file["path"]).name).read_text()
    said = {line.partition("=")[0] for line in file["content"].splitlines()}
    assert said <= {line.partition("=")[0] for line in example.splitlines() if not line.startswith("#")}


def test_kubernetes_md_has_every_option() -> None:
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    documented = set(re.findall(r"`(--[a-z-]+)", (DOCS / "kubernetes.md").read_text()))
    launchs_own_names = {"--served-model-name", "--no-bidir"}
    assert options - launchs_own_names <= documented


def test_the_cluster_commands_print_what_they_say(shell: Shell, tmp_path: Path) -> None:
    page = (DOCS / "kubernetes.md").read_text()
    lines = [line.strip() for line in page.splitlines() if line.startswith("    neuron-pd cluster")]
    assert len(lines) == 3
    program = tmp_path / "neuron-pd"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m neuron_pd "$@"\n')
    program.chmod(0o755)
    environment = {**shell.environment, "IMAGE": "example.com/neuron-pd:1", "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    subprocess.run(["bash", "-euc", "\n".join(lines)], cwd=tmp_path, env=environment, check=True)
    assert all((tmp_path / name).read_text() for name in ("cluster.yaml", "values.yaml", "compose.yaml"))
