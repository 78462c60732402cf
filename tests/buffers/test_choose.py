from pathlib import Path

import pytest

from neuron_pd.buffers import ADAPTERS, BufferFault, choose
from neuron_pd.buffers.choose import is_staged, slots_for
from neuron_pd.buffers.machine import Machine
from neuron_pd.buffers.staged import StagedAdapter
from tests.buffers.conftest import a_machine


@pytest.mark.parametrize(
    ("wanted", "device", "name"),
    [
        ("auto", "cpu", "host"),
        ("auto", "cuda", "cuda"),
        ("auto", "neuron", "neuron"),
        ("staged", "neuron", "neuron"),
        ("staged", "cpu", "host"),
        ("auto", "xpu", "host"),
        *((name, "cuda", name) for name in ADAPTERS),
    ],
)
def test_memory_gets_its_adapter(machine: Machine, wanted: str, device: str, name: str) -> None:
    assert choose(wanted, device, machine=machine).name == name


def test_an_adapter_that_is_not_there(machine: Machine) -> None:
    with pytest.raises(BufferFault, match="'gpu' in kv_connector_extra_config: use one of auto, host, cuda, neuron"):
        choose("gpu", "cuda", machine=machine)


@pytest.mark.parametrize(
    ("wanted", "device", "kv_buffer_device", "staged"),
    [
        ("auto", "cpu", "cpu", False),
        ("auto", "cuda", "cuda", False),
        ("auto", "cuda", "cpu", True),  # upstream's host buffer would never read back
        ("auto", "neuron", "cuda", False),
        ("auto", "xpu", "xpu", True),
        ("staged", "cpu", "cpu", True),
        ("cuda", "cuda", "cpu", False),
    ],
)
def test_what_cannot_be_registered_is_staged(
    machine: Machine, wanted: str, device: str, kv_buffer_device: str, staged: bool
) -> None:
    assert is_staged(wanted, device, kv_buffer_device, machine) is staged


def test_an_instance_that_cannot_register_hbm_stages(tmp_path: Path) -> None:
    small = a_machine(tmp_path / "small", "trn2.3xlarge", efa=0)
    assert is_staged("auto", "neuron", "cuda", small)
    assert not is_staged("neuron", "neuron", "cuda", small)  # a person who asks for it is told why not


def test_a_staging_buffer_has_no_more_slots_than_there_are_blocks(machine: Machine) -> None:
    assert slots_for(100, 1024, 50 * 1024 + 1) == 50
    assert slots_for(100, 1024, 2**30) == 100
    with pytest.raises(BufferFault, match='raise "staging_bytes"'):
        StagedAdapter(choose("auto", "cpu", machine=machine), 100, slots_for(100, 1024, 1000))
