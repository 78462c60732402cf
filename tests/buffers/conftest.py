import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_pd.buffers.machine import Machine
from neuron_pd.buffers.nrt import Runtime
from tests.fakes.nrt import build


@pytest.fixture(scope="session")
def libnrt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libnrt.so.1."""
    return build(tmp_path_factory.mktemp("libnrt"))


@pytest.fixture
def runtime(libnrt: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A started runtime with two cores and an EFA device next to each."""
    monkeypatch.setenv("FAKE_NRT_EFA", "0000:47:00.0,0000:59:00.0")
    made = Runtime(ctypes.CDLL(str(libnrt)))
    made.init()
    yield made
    made.close()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A trn2.48xlarge: 16 EFA devices, no limit on locked memory."""
    return a_machine(tmp_path / "trn2", "trn2.48xlarge", efa=16)


def a_machine(sysfs: Path, instance: str, *, efa: int, memlock: int | None = None) -> Machine:
    place = sysfs / "devices" / "virtual" / "dmi" / "id"
    place.mkdir(parents=True)
    (place / "product_name").write_text(f"{instance}\n")
    (sysfs / "class" / "infiniband").mkdir(parents=True)
    for number in range(efa):
        (sysfs / "class" / "infiniband" / f"rdmap{40 + number}s0").mkdir()
    return Machine(sysfs, memlock)
