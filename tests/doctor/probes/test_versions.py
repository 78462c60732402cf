from pathlib import Path

import pytest

from neuron_pd.doctor.findings import Verdict
from neuron_pd.doctor.probes import versions
from tests.doctor.sites import METADATA, Machine, look, only


@pytest.fixture
def p5en(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "p5en.48xlarge")


@pytest.fixture
def trn2(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "trn2.48xlarge")


@pytest.mark.parametrize(
    ("found", "seen"),
    [
        ("0.28.1", "vLLM 0.28.1, and our connector is tested on 0.29 to 0.32"),
        ("0.33.0", "0.33.0"),
        ("", "not installed"),
    ],
)
def test_vllm(p5en: Machine, found: str, seen: str) -> None:
    p5en.packages["vllm"] = found
    if not found:
        del p5en.packages["vllm"]
    finding = only(versions.vllm, p5en.site())
    assert finding.verdict is Verdict.FAILED
    assert seen in finding.seen
    assert "neuron-pd[cuda]" in finding.fix


def test_an_old_nixl(p5en: Machine) -> None:
    p5en.packages["nixl"] = "1.3.2"
    finding = only(versions.nixl, p5en.site())
    assert finding.verdict is Verdict.FAILED
    assert finding.seen.startswith("NIXL 1.3.2 is older than 1.4.1")
    assert finding.fix == "`pip install 'nixl>=1.4.1,<2'`"


def test_no_nixl(p5en: Machine) -> None:
    """`nixl-cu12` alone is not what vLLM imports."""
    del p5en.packages["nixl"]
    assert only(versions.nixl, p5en.site()).seen == "NIXL is not installed"


def test_a_nixl_of_two_releases(p5en: Machine) -> None:
    p5en.packages["nixl-cu12"] = "1.4.1"
    finding = only(versions.nixl, p5en.site())
    assert (finding.verdict, finding.seen) == (Verdict.WARNING, "NIXL 1.5.1 over nixl-cu12 1.4.1")
    assert "nixl-cu12==1.5.1" in finding.fix


def test_companions_of_torch(p5en: Machine) -> None:
    p5en.module("torchvision.py", "raise RuntimeError('operator torchvision::nms does not exist')")
    finding = only(versions.torch, p5en.site())
    assert finding.verdict is Verdict.FAILED
    assert "torchvision::nms" in finding.seen
    assert "pip uninstall -y torchvision" in finding.fix


def test_neuron_packages(trn2: Machine) -> None:
    good = look(versions.neuron, trn2.site())
    assert [finding.about for finding in good] == ["torch-neuronx", "vllm-neuron"]
    assert good[1].seen == "0.29.0.1.2.0, of Neuron SDK 2.33"
    trn2.packages["vllm-neuron"] = "0.24.0.1.1.0"
    old = look(versions.neuron, trn2.site())[1]
    assert old.verdict is Verdict.FAILED
    assert "vllm-neuron 0.24.0.1.1.0 is not among vLLM 0.29 to 0.32" in old.seen
    assert "Neuron SDK 2.33" in old.fix


def test_a_placeholder_of_the_public_index(trn2: Machine) -> None:
    trn2.metadata = METADATA + "\nWRONG PACKAGE\n"
    finding = look(versions.neuron, trn2.site())[0]
    assert finding.verdict is Verdict.FAILED
    assert "empty placeholder" in finding.seen
    assert "pip uninstall -y torch-neuronx" in finding.fix


@pytest.mark.parametrize(("value", "verdict"), [("1", Verdict.FAILED), ("0", Verdict.OK)])
def test_the_rust_front_end(p5en: Machine, value: str, verdict: Verdict) -> None:
    p5en.environ["VLLM_USE_RUST_FRONTEND"] = value
    assert only(versions.front_end, p5en.site()).verdict is verdict
