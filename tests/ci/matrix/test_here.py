from pathlib import Path

import pytest

from ci import libfabric
from ci.matrix import here
from ci.matrix.legs import legs
from neuron_pd.hosts.machine import Machine
from tests.hosts.machines import machine as observed

LEGS = legs()
BARE = Machine()


@pytest.mark.parametrize(
    ("leg", "words"),
    [
        ("cuda-vllm0.32-ucx-lease", "needs p5en.48xlarge or its like: 2 NVIDIA GPUs at least, and this machine has 0"),
        ("neuron-vllm0.29-libfabric-pin", "needs trn2.48xlarge or its like: 2 Neuron cores at least, and this"),
    ],
)
def test_a_machine_without_accelerators_lacks_them(leg: str, words: str) -> None:
    assert words in (here.missing(LEGS[leg], BARE) or "")


@pytest.mark.parametrize(
    ("machine", "leg"),
    [
        ("p5en.48xlarge", "cuda-vllm0.32-libfabric-lease"),
        ("p4d.24xlarge", "cuda-vllm0.29-ucx-pin"),
        ("trn2.48xlarge", "neuron-vllm0.29-libfabric-lease"),
    ],
)
def test_a_machine_of_the_kind_runs_its_legs_as_what_it_is(machine: str, leg: str, tmp_path: Path) -> None:
    found = observed(tmp_path, machine)
    assert here.missing(LEGS[leg], found) is None
    assert here.instance(LEGS[leg], found) == machine


def test_accelerators_of_another_kind_do_not_do(tmp_path: Path) -> None:
    why = here.missing(LEGS["neuron-vllm0.29-libfabric-pin"], observed(tmp_path, "p5en.48xlarge"))
    assert "needs trn2.48xlarge" in (why or "")


def test_libfabric_on_accelerators_needs_efa(tmp_path: Path) -> None:
    machine = Machine(product="p5en.48xlarge", gpus=observed(tmp_path, "p5en.48xlarge").gpus)
    why = here.missing(LEGS["cuda-vllm0.32-libfabric-lease"], machine)
    assert why == "LIBFABRIC needs EFA devices, of which p5en.48xlarge has 16, and this machine has none"
    assert here.missing(LEGS["cuda-vllm0.32-ucx-lease"], machine) is None


def test_accelerators_that_no_profile_knows_are_named(tmp_path: Path) -> None:
    gpus = observed(tmp_path, "p5en.48xlarge").gpus[:3]
    why = here.missing(LEGS["cuda-vllm0.32-ucx-lease"], Machine(gpus=gpus))
    assert "no instance type is known with 3 × NVIDIA H200" in (why or "")


def test_libfabric_over_tcp_needs_what_its_module_says(monkeypatch: pytest.MonkeyPatch) -> None:
    here._fabric.cache_clear()
    monkeypatch.setattr(libfabric, "why_not", lambda: "no root here")
    assert here.missing(LEGS["cpu-vllm0.32-libfabric-lease"], BARE) == "no root here"
    assert here.missing(LEGS["cpu-vllm0.32-ucx-lease"], BARE) is None
    here._fabric.cache_clear()
