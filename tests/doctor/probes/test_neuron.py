import json
from pathlib import Path
from typing import Any

import pytest

from neuron_pd.doctor.findings import Verdict
from neuron_pd.doctor.probes import neuron
from tests.doctor.sites import Machine, look, only
from tests.fakes import nrt
from tests.hosts.machines import captured

INSTANCE = "trn2u.48xlarge"


@pytest.fixture
def trn2(tmp_path: Path) -> Machine:
    return Machine(tmp_path, INSTANCE)


def listing(machine: Machine, devices: list[dict[str, Any]]) -> None:
    """What neuron-ls prints from now on."""
    machine.write("listing", json.dumps(devices))
    machine.tool("neuron-ls", f"cat '{machine.root / 'listing'}'")


def shown() -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = json.loads(captured(INSTANCE, "neuron-ls.json"))
    return devices


def test_a_device_is_missing(trn2: Machine) -> None:
    listing(trn2, shown()[1:])
    finding = only(neuron.devices, trn2.site())
    assert (finding.verdict, finding.seen) == (Verdict.FAILED, "15 of the 16 Trn2 devices")


def test_the_tool_says_why_there_is_none(trn2: Machine) -> None:
    trn2.tool("neuron-ls", "echo 'no neuron device found' >&2; exit 1")
    finding = only(neuron.devices, trn2.site())
    assert finding.verdict is Verdict.FAILED
    assert finding.seen.endswith("neuron-ls lists none (no neuron device found)")
    assert "modprobe neuron" in finding.fix


def test_another_logical_core_size(trn2: Machine) -> None:
    listing(trn2, [{**device, "logical_neuroncore_config": 1, "neuroncore_ids": [*range(8)]} for device in shown()])
    finding = only(neuron.cores, trn2.site())
    assert finding.verdict is Verdict.WARNING
    assert finding.seen.startswith("128 logical cores (LNC 1), and the profile of trn2u.48xlarge counts 64")


def test_a_stranger_on_the_cores(trn2: Machine) -> None:
    devices = shown()
    devices[3]["neuron_processes"] = [{"pid": 4711, "command": "python train.py"}]
    listing(trn2, devices)
    finding = only(neuron.processes, trn2.site())
    assert finding.verdict is Verdict.WARNING
    assert f"pid 4711 on device {devices[3]['neuron_device']}" in finding.seen
    assert only(neuron.processes, trn2.site(ours=frozenset((4711,)))).verdict is Verdict.OK


def test_no_driver(trn2: Machine) -> None:
    (trn2.root / "sys/module/neuron/version").unlink()
    finding = only(neuron.driver, trn2.site())
    assert (finding.verdict, finding.seen) == (Verdict.FAILED, "the neuron driver is not loaded")


@pytest.mark.parametrize("name", neuron.WORKERS_OWN)
def test_what_the_workers_set_themselves(trn2: Machine, name: str) -> None:
    assert only(neuron.environment, trn2.site()).verdict is Verdict.OK
    trn2.environ[name] = "0"
    finding = only(neuron.environment, trn2.site())
    assert (finding.verdict, finding.about) == (Verdict.FAILED, name)
    assert f"unset {name}" in finding.fix


def test_the_runtime_is_not_on_the_path(trn2: Machine) -> None:
    finding = only(neuron.runtime, trn2.site())
    assert finding.verdict is Verdict.FAILED
    assert "libnrt.so.1 is not on the loader's path" in finding.seen
    assert "/opt/aws/neuron/lib" in finding.fix


@pytest.mark.parametrize(("defines", "verdict"), [((), Verdict.OK), (("WITHOUT_EFA_QUERY",), Verdict.WARNING)])
def test_the_runtime(trn2: Machine, tmp_path: Path, defines: tuple[str, ...], verdict: Verdict) -> None:
    nrt.build(tmp_path, *defines)
    trn2.environ["LD_LIBRARY_PATH"] = str(tmp_path)
    assert only(neuron.runtime, trn2.site()).verdict is verdict


def test_a_plain_machine_says_what_it_lacks(tmp_path: Path) -> None:
    plain = Machine(tmp_path, "p5en.48xlarge")
    (plain.root / "sys/module/neuron/version").unlink()
    said = [finding for probe in neuron.PROBES for finding in look(probe, plain.site())]
    assert {finding.verdict for finding in said} == {Verdict.NOT_APPLICABLE}
    assert "the neuron driver is not loaded, and a machine of kind p5en.48xlarge needs none" in said[3].seen
