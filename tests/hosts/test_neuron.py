import pytest

from neuron_pd.hosts.neuron import parse_neuron_ls
from tests.hosts.machines import captured


def test_a_trn2_with_logical_cores_of_two() -> None:
    devices = parse_neuron_ls(captured("trn2.48xlarge", "neuron-ls.json"))
    assert [device.index for device in devices] == list(range(16))
    assert {(device.cores, device.logical_core_size, device.memory) for device in devices} == {(4, 2, 96 * 2**30)}
    assert {device.instance_type for device in devices} == {"trn2.48xlarge"}
    assert devices[0].bdf.startswith("0000:")
    assert [device.pids for device in devices if device.pids] == [(113985,)]


def test_a_trn1_says_less() -> None:
    (first, *rest) = parse_neuron_ls(captured("trn1.32xlarge", "neuron-ls.json"))
    assert (first.cores, first.logical_core_size, first.memory, first.instance_type) == (2, 1, 32 * 2**30, "")
    assert len(rest) == 15


def test_keys_that_are_missing_or_of_another_type() -> None:
    (device,) = parse_neuron_ls(
        '[{"neuron_device": "0", "memory_size": null, "nc_count": "8", "neuron_processes": null, "connected_to": null}]'
    )
    assert (device.index, device.memory, device.cores, device.pids, device.bdf) == (0, 0, 8, (), "")


@pytest.mark.parametrize("text", ["{}", "no devices found", '"x"', ""])
def test_what_is_not_a_list(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_neuron_ls(text)
