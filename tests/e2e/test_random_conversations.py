"""Random conversations on real engines; `python -m ci.random_conversations` holds a thousand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.matrix.legs import ROOT

pytestmark = pytest.mark.e2e


def test_every_answer_equals_a_cold_runs(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "ci.random_conversations", "--count", "24", "--json", str(out)]
    command += ["--retention", os.environ.get("NEURON_PD_TEST_RETENTION", "lease")]
    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["equal"] == found["turns"] == 24 * 4
    assert found["wrong"] == []
    assert found["held"] == {"prefill": 0, "decode": 0}
    assert found["reused_tokens"] > 0
    assert found["distinct_answers"] > found["turns"] // 2  # the model's answers do tell prompts apart
