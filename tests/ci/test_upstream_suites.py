"""The runner of upstream's suites, on source releases of its own making."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.matrix.legs import ROOT
from ci.upstream_suites import DIFFERENT, UNIT, installed_vllm

pytestmark = pytest.mark.skipif(installed_vllm() is None, reason="vLLM is not installed: pip install 'neuron-pd[cpu]'")

OURS = """
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnectorScheduler
from neuron_pd.connector.scheduler import LeaseOnRead

def test_the_scheduler_is_ours():
    assert issubclass(NixlConnectorScheduler, LeaseOnRead)
    assert NixlPullConnectorScheduler is NixlConnectorScheduler

def test_one_made_bare_is_whole():
    bare = object.__new__(NixlConnectorScheduler)
    bare.kv_cache_config = __import__("types").SimpleNamespace(kv_cache_groups=[], num_blocks=4)
    assert bare.retention.settings.retention == "pin"
"""


def run(*argv: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ci.upstream_suites", *argv]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def release(cache: Path, body: str) -> None:
    """A source release in the cache, whose heartbeat suite is `body`."""
    unit = cache / "neuron-pd" / "sources" / f"vllm-{installed_vllm()}-source" / UNIT
    unit.mkdir(parents=True)
    for package in ("tests", "tests/v1", "tests/v1/kv_connector", "tests/v1/kv_connector/unit"):
        (unit.parents[3] / package / "__init__.py").touch()
    (unit / "test_nixl_heartbeat.py").write_text(body)


@pytest.mark.vllm
def test_it_puts_our_scheduler_where_upstream_makes_its_own(tmp_path: Path) -> None:
    release(tmp_path, OURS)
    done = run(XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert all(f"not run: {name}: {reason}" in done.stdout for name, reason in DIFFERENT.items())


def test_a_failing_suite_is_a_failure(tmp_path: Path) -> None:
    release(tmp_path, "def test_no(): assert False")
    assert run(XDG_CACHE_HOME=str(tmp_path)).returncode == 1


def test_a_release_that_cannot_be_had_is_said_and_is_no_failure(tmp_path: Path) -> None:
    done = run(XDG_CACHE_HOME=str(tmp_path), PIP_NO_INDEX="1", PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull)
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"skipped: vLLM {installed_vllm()}'s source release is not available here" in done.stdout


def test_a_release_that_is_not_installed_is_a_usage_error() -> None:
    done = run("--vllm", "0.1.0")
    assert done.returncode == 2
    assert "is installed here: run it where 0.1.0 is" in done.stderr
