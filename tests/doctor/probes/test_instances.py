"""Every captured instance type, in good order, is found to be so; a plain machine is ready too."""

from pathlib import Path

import pytest

from neuron_pd.doctor.examine import examine
from neuron_pd.doctor.findings import Verdict
from neuron_pd.doctor.probes import cuda, efa, limits, machine, neuron, nixl, versions
from tests.doctor.sites import Machine
from tests.hosts.machines import INSTANCES

# What is left out needs a driver's library (libnrt, libcuda) or a torch in a child process: each has its own tests.
ABOUT_THE_MACHINE = (
    *machine.PROBES, *efa.PROBES, *nixl.PROBES, neuron.devices, neuron.cores, neuron.processes, neuron.driver,
    neuron.environment, cuda.gpus, *limits.PROBES, versions.vllm, versions.nixl, versions.neuron, versions.front_end,
)  # fmt: skip


@pytest.mark.parametrize("instance", INSTANCES)
def test_a_good_machine(tmp_path: Path, instance: str) -> None:
    good = Machine(tmp_path, instance)
    observed = good.site().machine
    ours = frozenset(pid for device in observed.neuron for pid in device.pids)  # one of the captures has an engine
    site = good.site(role="decode", ours=ours)
    good.environ["RAILS"] = str(site.efa_wanted or 1)
    results = examine(ABOUT_THE_MACHINE, site, 60)
    bad = [result for result in results if result.finding.verdict in (Verdict.FAILED, Verdict.WARNING)]
    assert not bad
    seen = {result.probe: result.finding for result in results}
    assert seen["instance"].seen.startswith(instance)
    accelerator = "GPUs" if instance.startswith("p") else "Neuron devices"
    assert seen[accelerator].verdict is Verdict.OK
    assert seen["EFA devices"].verdict is (Verdict.OK if site.efa_wanted else Verdict.NOT_APPLICABLE)


def test_a_proxy_needs_nothing_of_it(tmp_path: Path) -> None:
    site = Machine(tmp_path, "trn2.48xlarge").site(role="proxy")
    verdicts = {result.finding.verdict for result in examine(ABOUT_THE_MACHINE[1:], site, 60)}
    assert verdicts == {Verdict.NOT_APPLICABLE}


def test_a_machine_of_no_known_type_is_a_warning_that_says_what_to_do(tmp_path: Path) -> None:
    unknown = Machine(tmp_path, "p5en.48xlarge")
    unknown.write("sys/devices/virtual/dmi/id/product_name", "p99.metal\n")
    unknown.tool("nvidia-smi", "echo '0, NVIDIA X9, 1000 MiB, 00000000:53:00.0, 999.1'")
    site = unknown.site()
    finding = machine.instance.look(site)
    assert finding.verdict is Verdict.WARNING
    assert "say --instance" in finding.fix
    assert site.instance.name == "cpu"
