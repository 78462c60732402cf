"""Every shell script of launch/ passes shellcheck."""

import subprocess
from pathlib import Path

import pytest

from tests.launch_assets.tools import LAUNCH, tool

SCRIPTS = sorted(path for path in LAUNCH.rglob("*") if path.is_file() and path.read_bytes()[:2] == b"#!")


def test_there_are_some() -> None:
    assert {path.name for path in SCRIPTS} >= {"neuron-pd.sbatch", "serve_pd_multiturn.sh"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_it_passes_shellcheck(path: Path) -> None:
    subprocess.run([tool("shellcheck"), "--shell=bash", "--external-sources", path], check=True)
