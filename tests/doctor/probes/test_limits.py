from pathlib import Path

import pytest

from neuron_pd.doctor.findings import Verdict
from neuron_pd.doctor.probes import limits
from tests.doctor.sites import LIMITS, MEMORY, Machine, only


@pytest.fixture
def trn2(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "trn2.48xlarge")


def test_locked_memory(trn2: Machine) -> None:
    assert only(limits.memlock, trn2.site()).verdict is Verdict.OK
    trn2.write("proc/self/limits", LIMITS.format(8388608))
    finding = only(limits.memlock, trn2.site())
    assert finding.verdict is Verdict.FAILED
    assert finding.seen.startswith("limited to 8192 KiB")
    assert "memlock unlimited" in finding.fix
    assert only(limits.memlock, trn2.site(instance_name="cpu")).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("capabilities", "verdict"),
    [
        ("000001ffffffffff", Verdict.OK),  # root on a machine
        ("00000000a80465fb", Verdict.OK),  # root in a container that was given IPC_LOCK
        ("00000000a80425fb", Verdict.FAILED),  # and in one that was not
        ("0000000000000000", Verdict.FAILED),
    ],
)
def test_who_may_lock_memory_whatever_the_limit(trn2: Machine, capabilities: str, verdict: Verdict) -> None:
    trn2.write("proc/self/limits", LIMITS.format(8388608))
    trn2.write("proc/self/status", f"Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{capabilities}\n")
    assert only(limits.memlock, trn2.site()).verdict is verdict


def test_huge_pages(trn2: Machine) -> None:
    trn2.write("proc/meminfo", MEMORY.format(100))
    finding = only(limits.huge_pages, trn2.site())
    assert finding.verdict is Verdict.WARNING
    assert finding.seen.startswith("200 MiB of huge pages")
    assert "vm.nr_hugepages=2560" in finding.fix


@pytest.mark.parametrize(("role", "needed"), [(None, 64), ("prefill", 32)])
def test_shared_memory(trn2: Machine, role: str | None, needed: int) -> None:
    trn2.free = needed * 2**20
    assert only(limits.shared_memory, trn2.site(role=role)).verdict is Verdict.OK
    trn2.free -= 1
    finding = only(limits.shared_memory, trn2.site(role=role))
    assert finding.verdict is Verdict.FAILED
    assert f"{needed} are needed" in finding.seen
    (trn2.root / "dev/shm/.keep").unlink()
    (trn2.root / "dev/shm").rmdir()
    assert only(limits.shared_memory, trn2.site(role=role)).seen == "there is no /dev/shm"
