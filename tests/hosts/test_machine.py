import os
from pathlib import Path

import pytest

from neuron_pd.hosts import machine as machines
from neuron_pd.hosts.machine import Machine, observe, output_of
from tests.hosts.machines import install, machine


def test_what_is_in_a_machine(tmp_path: Path) -> None:
    p5en, trn2 = machine(tmp_path / "p5en", "p5en.48xlarge"), machine(tmp_path / "trn2", "trn2.48xlarge")
    assert (p5en.product, len(p5en.efa), p5en.accelerators) == ("p5en.48xlarge", 16, "8 × NVIDIA H200")
    assert (trn2.product, len(trn2.efa), trn2.accelerators) == ("trn2.48xlarge", 16, "16 Neuron devices")


def test_an_empty_machine_and_tools_that_print_nonsense(tmp_path: Path) -> None:
    assert observe(tmp_path, lambda _: None) == Machine()
    assert observe(tmp_path, lambda _: "segmentation fault") == Machine()
    assert Machine().accelerators == "no accelerator"


def test_the_product_name_of_another_vendor_is_no_instance_type(tmp_path: Path) -> None:
    assert machine(tmp_path, "p5en.48xlarge", product=False).product == ""


def test_tools_are_run_and_their_failures_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{install(tmp_path / 'bin', 'trn2.3xlarge')}:{os.environ['PATH']}")
    found = observe(tmp_path)
    assert found.accelerators == "1 Neuron device"
    assert output_of(["false"]) is None
    assert output_of(["no-such-tool"]) is None


def test_a_tool_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "SECONDS", 0.05)
    assert output_of(["sleep", "60"]) is None
