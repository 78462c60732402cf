"""NIXL's real LIBFABRIC backend over libfabric's tcp provider, on a machine that is said to have EFA."""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from ci.libfabric import CANNOT, ROOT

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed"),
]


def findings(*before: str) -> dict[str, dict[str, Any]]:
    doctor = [sys.executable, "-m", "neuron_pd", "doctor", "--instance", "p5en.48xlarge", "--role", "prefill", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "ci.libfabric", *before, *doctor], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 1, done.stderr
    return {finding["probe"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_a_silent_fall_back_to_tcp_is_named() -> None:
    found = findings()
    assert found["NIXL plugin"]["verdict"] == "ok"
    assert found["NIXL backend"]["verdict"] == "failed"
    assert found["NIXL backend"]["seen"] == "KV would silently go over TCP: 1 rail over tcp"
    assert found["libfabric environment"]["seen"].startswith("FI_PROVIDER=tcp")


def test_where_libfabric_is_told_to_take_efa_it_says_that_there_is_none() -> None:
    found = findings("env", "-u", "FI_PROVIDER")
    assert found["NIXL backend"]["verdict"] == "failed"
    assert "NIXL_ERR_BACKEND: Failed to create engine" in found["NIXL backend"]["seen"]
    assert "EFA devices" in found["NIXL backend"]["fix"]
