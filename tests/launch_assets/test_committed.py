"""Every file of launch/ that a command makes is what the command makes today."""

import re
import shlex
from pathlib import Path

import pytest

from tests.launch_assets.tools import LAUNCH, neuron_pd

MADE = re.compile(r"\A# Made by: neuron-pd (.*)\n")
FILES = sorted(path for path in LAUNCH.rglob("*") if path.is_file() and MADE.match(path.read_text()))


def test_there_are_some() -> None:
    assert {path.name for path in FILES} >= {"values.yaml", "compose.yaml"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(LAUNCH)))
def test_it_is_up_to_date(path: Path) -> None:
    first, _, rest = path.read_text().partition("\n")
    argv = shlex.split(first.partition("neuron-pd ")[2])
    assert rest == neuron_pd(*argv), f"make it anew: (echo '{first}'; neuron-pd {shlex.join(argv)}) > {path}"
