from pathlib import Path

import pytest

from neuron_pd.buffers import BufferFault, Region
from neuron_pd.buffers.host import HostAdapter
from neuron_pd.buffers.machine import Machine
from tests.buffers.conftest import a_machine


@pytest.fixture(autouse=True)
def efa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FI_PROVIDER", raising=False)


def test_what_sysfs_says_of_a_machine(tmp_path: Path) -> None:
    machine = a_machine(tmp_path / "p5en", "p5en.48xlarge", efa=16)
    (machine.sysfs / "class" / "infiniband" / "mlx5_0").mkdir()
    assert machine.instance_type() == "p5en.48xlarge"
    assert len(machine.efa_devices()) == 16
    assert machine.best_backends() == ("LIBFABRIC",)


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "nothing", None)
    assert (machine.instance_type(), machine.efa_devices()) == ("", [])
    assert machine.best_backends() == ("UCX",)


def test_a_limit_on_locked_memory_that_is_too_low(tmp_path: Path) -> None:
    host = HostAdapter(a_machine(tmp_path / "low", "p5en.48xlarge", efa=16, memlock=8 * 2**20))
    host.before_registration([Region(4096, 8 * 2**20)], ["LIBFABRIC"])
    with pytest.raises(BufferFault, match=r"ulimit -l unlimited.*--ulimit memlock=-1") as fault:
        host.before_registration([Region(4096, 8 * 2**20), Region(2**30, 4096)], ["LIBFABRIC"])
    assert "8388608 bytes" in str(fault.value)
    assert "8392704" in str(fault.value)


def test_only_efa_locks_what_it_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostAdapter(a_machine(tmp_path / "low", "m7i.4xlarge", efa=0, memlock=0))
    regions = [Region(4096, 4096)]
    host.before_registration(regions, ["UCX"])
    with pytest.raises(BufferFault, match="no EFA device"):
        host.before_registration(regions, ["LIBFABRIC"])
    monkeypatch.setenv("FI_PROVIDER", "tcp")
    host.before_registration(regions, ["LIBFABRIC"])
