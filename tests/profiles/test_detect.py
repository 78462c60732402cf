from dataclasses import replace
from pathlib import Path

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.hosts.machine import Machine
from neuron_pd.profiles import Profiles
from neuron_pd.profiles.detect import instance_of
from tests.hosts.machines import INSTANCES, machine

ALIKE = {"trn2.48xlarge", "trn2u.48xlarge"}


@pytest.mark.parametrize("instance", INSTANCES)
def test_a_machine_that_says_what_it_is(instance: str, tmp_path: Path) -> None:
    assert instance_of(machine(tmp_path, instance), Profiles()) == instance


@pytest.mark.parametrize("instance", sorted(set(INSTANCES) - {"trn2u.48xlarge"}))
def test_a_machine_that_does_not_is_known_by_what_is_in_it(instance: str, tmp_path: Path) -> None:
    assert instance_of(machine(tmp_path, instance, product=False), Profiles()) == instance


def test_two_that_are_alike_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"16 Neuron devices and 16 EFA devices may be trn2.48xlarge or trn2u.48xlarge: "
    ):
        instance_of(machine(tmp_path, "trn2u.48xlarge", product=False), Profiles())


def test_efa_devices_that_are_missing_do_not_make_another_type(tmp_path: Path) -> None:
    bare = replace(machine(tmp_path, "p4de.24xlarge", product=False), efa=())
    assert instance_of(bare, Profiles()) == "p4de.24xlarge"


def test_accelerators_that_no_type_has(tmp_path: Path) -> None:
    whole = machine(tmp_path, "p5en.48xlarge", product=False)
    with pytest.raises(UsageError, match=r"no instance type is known with 2 × NVIDIA H200 and 16 EFA devices: say --i"):
        instance_of(replace(whole, gpus=whole.gpus[:2]), Profiles())


def test_a_machine_without_an_accelerator_is_a_cpu() -> None:
    assert instance_of(Machine(product="m7i.4xlarge"), Profiles()) == "cpu"
