"""The Neuron adapter against a stand-in for the runtime: each thing that goes wrong says its own line."""

import ctypes
from pathlib import Path

import pytest

from neuron_pd.buffers import BufferFault
from neuron_pd.buffers.machine import Machine
from neuron_pd.buffers.neuron import NeuronAdapter
from neuron_pd.buffers.nrt import NrtError, Runtime, Status
from tests.buffers.conftest import a_machine
from tests.fakes.nrt import build, run

ADAPTER = """
import sys
from neuron_pd.buffers import BufferFault
from neuron_pd.buffers.machine import Machine
from neuron_pd.buffers.neuron import NeuronAdapter
from pathlib import Path
try:
    adapter = NeuronAdapter(Machine(Path({sysfs!r}), None))
    adapter.before_agent()
    {then}
except BufferFault as fault:
    sys.exit(str(fault))
"""
REGISTER = """
    adapter.runtime.init()
    regions = adapter.regions({"layer": adapter.runtime.allocate(8192)})
    adapter.before_registration(regions, ("LIBFABRIC",))
    print(adapter.describe(regions))
"""


def said(machine: Machine, place: Path | None, then: str = "", **environment: str) -> str:
    """What the adapter refuses with, in a process of its own; what it prints where it does not."""
    done = run(ADAPTER.format(sysfs=str(machine.sysfs), then=then or "pass"), place, **environment)
    return (done.stderr if done.returncode else done.stdout).strip()


def test_libnrt_that_the_loader_does_not_find(machine: Machine) -> None:
    line = said(machine, None)
    assert "libnrt.so.1 is not on the loader's path" in line
    assert 'export LD_LIBRARY_PATH="/opt/aws/neuron/lib:$LD_LIBRARY_PATH"' in line


def test_a_runtime_that_is_not_initialised(machine: Machine, libnrt: Path) -> None:
    line = said(machine, libnrt.parent)
    assert "not initialised in this process" in line
    assert 'torch.zeros(1, device="neuron")' in line
    assert said(machine, libnrt.parent, FAKE_NRT_STARTED="1") == ""


def test_an_address_of_zero(machine: Machine, libnrt: Path) -> None:
    line = said(machine, libnrt.parent, REGISTER, FAKE_NRT_STARTED="1", FAKE_NRT_UNMAPPED="1")
    assert "address is 0" in line
    assert "export NEURON_RT_MAP_HBM=1" in line


@pytest.mark.parametrize("status", [2, 4])  # INVALID, RESOURCE
def test_dma_buf_that_the_driver_refuses(machine: Machine, libnrt: Path, status: int) -> None:
    line = said(machine, libnrt.parent, REGISTER, FAKE_NRT_STARTED="1", FAKE_NRT_DMABUF=str(status))
    assert f"nrt_get_dmabuf_fd failed with status {status} ({Status(status).name})" in line
    assert "aws-neuronx-dkms" in line
    assert '"buffer": "staged"' in line


def test_no_efa_device(tmp_path: Path, libnrt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FI_PROVIDER", raising=False)
    line = said(a_machine(tmp_path / "none", "trn2.48xlarge", efa=0), libnrt.parent, FAKE_NRT_STARTED="1")
    assert "no EFA device" in line
    assert "--device=/dev/infiniband/uverbs0" in line


def test_an_instance_that_cannot_register_hbm(tmp_path: Path, libnrt: Path) -> None:
    line = said(a_machine(tmp_path / "small", "trn2.3xlarge", efa=1), libnrt.parent, FAKE_NRT_STARTED="1")
    assert line.startswith("trn2.3xlarge cannot register HBM")
    assert '"buffer": "staged" in kv_connector_extra_config' in line


def test_ucx_is_no_way_to_neuron_memory(machine: Machine) -> None:
    with pytest.raises(BufferFault, match='"backends": \\["LIBFABRIC"\\]'):
        NeuronAdapter(machine).backends(["UCX"])


def test_each_failure_has_a_message_of_its_own(tmp_path: Path, machine: Machine, libnrt: Path) -> None:
    place = libnrt.parent
    lines = [
        said(machine, None),
        said(machine, place),
        said(machine, place, REGISTER, FAKE_NRT_STARTED="1", FAKE_NRT_UNMAPPED="1"),
        said(machine, place, REGISTER, FAKE_NRT_STARTED="1", FAKE_NRT_DMABUF="2"),
        said(a_machine(tmp_path / "none", "trn2.48xlarge", efa=0), place, FAKE_NRT_STARTED="1"),
        said(a_machine(tmp_path / "small", "trn2.3xlarge", efa=1), place, FAKE_NRT_STARTED="1"),
    ]
    assert len(set(lines)) == len(lines)
    assert all(line and "\n" not in line for line in lines)


def test_the_log_names_the_rail_that_nixl_will_use(machine: Machine, runtime: Runtime) -> None:
    adapter = NeuronAdapter(machine, runtime)
    caches = {"a": runtime.allocate(4096, core=0), "b": runtime.allocate(4096, core=1), "c": runtime.allocate(4096)}
    regions = adapter.regions(caches)
    assert adapter.rails(regions) == ["0000:47:00.0", "0000:59:00.0"]
    assert adapter.describe(regions).endswith("rails=0000:47:00.0 0000:59:00.0")


def test_a_runtime_that_cannot_say_which_rail(
    machine: Machine, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAKE_NRT_EFA")
    adapter = NeuronAdapter(machine, runtime)
    assert "rails=all" in adapter.describe(adapter.regions({"a": runtime.allocate(4096)}))
    older = Runtime(ctypes.CDLL(str(build(tmp_path, "WITHOUT_EFA_QUERY"))))
    assert older.efa_address(4096) is None


def test_memory_is_freed_and_bounds_are_the_runtimes(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = runtime.allocate(4096)
    assert tensor.data_ptr()
    with pytest.raises(NrtError, match="INVALID"):
        tensor.read(4000, 200, tensor.data_ptr())
    tensor.free()
    tensor.free()
    monkeypatch.setenv("FAKE_NRT_FULL", "1000")
    with pytest.raises(NrtError, match="nrt_tensor_allocate failed with status 4 \\(RESOURCE\\)"):
        runtime.allocate(4096)


def test_a_function_that_a_runtime_lacks_is_named(runtime: Runtime) -> None:
    with pytest.raises(BufferFault, match="has no nrt_of_tomorrow: update aws-neuronx-runtime-lib"):
        runtime._call("nrt_of_tomorrow")


PROBE = "from neuron_pd.buffers.neuron import probe; print(probe())"


def test_a_probe_without_torch(libnrt: Path) -> None:
    done = run(PROBE, libnrt.parent, FAKE_NRT_EFA="0000:47:00.0", FAKE_NRT_CORES="4")
    assert done.returncode == 0, done.stderr
    assert "cores=4" in done.stdout
    assert "dmabuf='ok', efa='0000:47:00.0'" in done.stdout
    refused = run(PROBE, libnrt.parent, FAKE_NRT_DMABUF="4")
    assert "nrt_get_dmabuf_fd failed with status 4 (RESOURCE)" in refused.stdout
    taken = run(PROBE, libnrt.parent, FAKE_NRT_INIT="1")
    assert "nrt_init failed with status 1 (FAILURE): `neuron-ls`" in taken.stderr


def test_the_probe_imports_no_torch(libnrt: Path) -> None:
    done = run(f"import sys; {PROBE}; print('torch' in sys.modules)", libnrt.parent)
    assert done.stdout.splitlines()[-1] == "False", done.stdout + done.stderr
