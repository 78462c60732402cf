"""The same tests over other memory and another backend: KV through a host buffer, and the article's LIBFABRIC.

They run in a process of their own, in a network namespace (ci/libfabric.py), before this session starts engines. What
is run here is a part; the legs of ci/matrix.yaml run all of it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci.libfabric import CANNOT, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

BOTH_WAYS = ["tests/e2e/test_turns.py::test_every_turn_starts_from_the_one_before_and_answers_as_a_cold_run"]
LEASES = [*BOTH_WAYS, "tests/e2e/test_leases.py"]


@pytest.mark.parametrize(
    ("backend", "buffer", "tests"),
    [("LIBFABRIC", "host", BOTH_WAYS), ("LIBFABRIC", "staged", LEASES), ("UCX", "staged", BOTH_WAYS)],
)
def test_turns_and_leases_as_over_ucx(backend: str, buffer: str, tests: list[str], tmp_path: Path) -> None:
    settings = {"NEURON_PD_BACKENDS": backend, "NEURON_PD_BUFFER": buffer}
    inner = [sys.executable, "-m", "pytest", "-q", f"--basetemp={tmp_path / 'inner'}", *tests]
    done = subprocess.run(
        [sys.executable, "-m", "ci.libfabric", *inner],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout[-4000:]
    for role in ("prefill", "decode"):
        (log,) = (tmp_path / "inner").rglob(f"{role}.log")
        said = log.read_text()
        assert f"neuron-pd: buffer={buffer} " in said
        assert f"backends={backend}" in said
        assert f"Backend {backend} was instantiated" in said
