from pathlib import Path

import pytest

from neuron_pd.doctor.findings import Verdict
from neuron_pd.doctor.probes import efa
from tests.doctor.sites import Machine, only


@pytest.fixture
def trn2(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "trn2.48xlarge")


def test_too_few_devices(trn2: Machine) -> None:
    name = sorted((trn2.root / "sys/class/infiniband").iterdir())[0]
    (name / "device/vendor").write_text("0x15b3\n")
    finding = only(efa.devices, trn2.site())
    assert finding.verdict is Verdict.FAILED
    assert finding.seen == "15 of the 16 EFA devices of a trn2.48xlarge"
    assert "uverbs0" in finding.fix


def test_a_device_that_libfabric_does_not_open(trn2: Machine) -> None:
    (trn2.tools / "fi_info").rename(trn2.tools / "fi_info.all")
    trn2.tool("fi_info", 'fi_info.all "$@" | sed s/rdmap47s0/rdmap9s9/')
    finding = only(efa.provider, trn2.site())
    assert finding.verdict is Verdict.FAILED
    assert "not rdmap47s0" in finding.seen


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ("exit 127", "fi_info lists no EFA devices"),
        ("echo 'fi_getinfo: -61 (No data available)' >&2; exit 61", "no EFA devices (fi_getinfo: -61"),
        ("printf 'provider: tcp\\n    domain: eth0\\n'", "fi_info lists no EFA devices"),
        ("exec sleep 60", "fi_info hangs"),
    ],
)
def test_no_provider(trn2: Machine, script: str, seen: str) -> None:
    trn2.tool("fi_info", script)
    finding = only(efa.provider, trn2.site(seconds=0.5))
    assert finding.verdict is Verdict.FAILED
    assert seen in finding.seen
    assert "go over TCP and say nothing" in finding.seen
    assert "efa_installer.sh" in finding.fix


def test_fi_info_is_found_where_the_installer_puts_it(trn2: Machine) -> None:
    place = trn2.root / "opt/amazon/efa/bin"
    place.mkdir(parents=True)
    (trn2.tools / "fi_info").rename(place / "fi_info")
    assert only(efa.provider, trn2.site()).verdict is Verdict.OK


def test_libfabric_without_its_tool(trn2: Machine) -> None:
    trn2.environ["PATH"] = "/nowhere"
    assert only(efa.version, trn2.site()).seen == "fi_info is not installed"


@pytest.mark.parametrize(("version", "verdict"), [("1.20.1", Verdict.FAILED), ("1.21.0amzn1.0", Verdict.OK)])
def test_libfabric(trn2: Machine, version: str, verdict: Verdict) -> None:
    trn2.tool("fi_info", f"echo 'libfabric: {version}'")
    finding = only(efa.version, trn2.site())
    assert finding.verdict is verdict
    assert version in finding.seen


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("FI_PROVIDER", "tcp", Verdict.FAILED),
        ("FI_PROVIDER", "sockets", Verdict.FAILED),
        ("FI_PROVIDER", "efa", Verdict.OK),
        ("FI_EFA_ENABLE_SHM_TRANSFER", "1", Verdict.FAILED),
        ("FI_EFA_ENABLE_SHM_TRANSFER", "0", Verdict.OK),
    ],
)
def test_the_environment(trn2: Machine, name: str, value: str, verdict: Verdict) -> None:
    trn2.environ[name] = value
    finding = only(efa.environment, trn2.site())
    assert finding.verdict is verdict
    assert (name in finding.seen) is (verdict is Verdict.FAILED)


def test_a_plain_machine_says_what_it_lacks_and_that_it_needs_none(tmp_path: Path) -> None:
    plain = Machine(tmp_path, "trn2.48xlarge").site(instance_name="cpu")
    for probe in efa.PROBES:
        finding = only(probe, plain)
        assert finding.verdict is Verdict.NOT_APPLICABLE
        assert "KV goes over UCX" in finding.seen
