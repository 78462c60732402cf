"""Everything killed and started again under load; `python -m ci.chaos` does it for longer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ci.run import ROOT

pytestmark = pytest.mark.e2e


def test_nothing_that_dies_makes_an_answer_wrong(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "ci.chaos", "--kills", "4", "--json", str(out), "--run-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert {name for kill in found["kills"] for name in kill["killed"]} == {"prefill", "decode", "store", "proxy"}
    assert found["answers"] > 50
    assert found["read_back"] > 0
    assert found["wrong"] == found["stuck"] == found["unclear"] == []
    assert found["held"] == {"prefill": 0, "decode": 0}
