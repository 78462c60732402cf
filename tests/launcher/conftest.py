"""Children that are real processes, a state directory of the test's own, and a way to see that none is left."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.plans import Plan, left_of


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither the user's state nor the user's token is touched."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("NEURON_PD_CONTROL_TOKEN", raising=False)
    monkeypatch.delenv("NEURON_PD_CONTROL_TOKEN_FILE", raising=False)
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Every process of a test carries its directory in the environment; after the test there must be none."""
    yield
    left = left_of(tmp_path)
    for process in left:
        process.kill()
    assert not left, f"left behind: {[process.cmdline() for process in left]}"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(tmp_path / "run", tmp_path)
