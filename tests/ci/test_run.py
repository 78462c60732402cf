import subprocess
import sys
from importlib.util import find_spec

import pytest

from ci.run import ROOT, Leg, legs
from neuron_pd.core.versions import TESTED_VLLM


def run(*argv: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "ci.run", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_matrix_covers_the_tested_releases_from_first_to_last() -> None:
    releases = sorted(tuple(map(int, leg.vllm.partition("==")[2].split(".")))[:2] for leg in legs().values())
    assert (releases[0], releases[-1]) == TESTED_VLLM


def test_every_leg_runs_tests_that_exist() -> None:
    assert all((ROOT / path).exists() for leg in legs().values() for path in leg.tests)


def test_without_a_leg_it_lists_them() -> None:
    done = run()
    assert (done.returncode, done.stdout.split()) == (0, list(legs()))


def test_an_unknown_leg_is_a_usage_error() -> None:
    done = run("--leg", "nothing")
    assert done.returncode == 2
    assert "no leg 'nothing'; there are cpu-vllm0.29" in done.stderr


def test_every_module_of_a_leg_can_be_run() -> None:
    assert all(find_spec(module) for leg in legs().values() for module in leg.modules)


def test_a_leg_runs_where_its_row_says(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(Leg, "_module", lambda _, *command: ran.append(command) or 0)
    staged, fabric = legs()["cpu-vllm0.32-ucx-staged"], legs()["cpu-vllm0.32-libfabric-staged"]
    assert (staged.test("py"), fabric.test("py", "-q")) == (True, True)
    assert ran[0][:2] == ("py", "pytest")
    assert ran[1][:6] == ("py", "ci.libfabric", "py", "-m", "pytest", "-q")
    assert fabric.environment == {"NEURON_PD_BACKENDS": "LIBFABRIC", "NEURON_PD_BUFFER": "staged"}
