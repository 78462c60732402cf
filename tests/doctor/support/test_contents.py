import json
import os
from pathlib import Path

import pytest

from neuron_pd.doctor.cluster.place import Cluster, Engine
from neuron_pd.doctor.logs.sources import File, Journal
from neuron_pd.doctor.support import contents
from tests.core.test_control import INFO
from tests.doctor.sites import Machine


def test_configuration_is_what_runs_engines_and_nothing_else(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "trn2.48xlarge")
    machine.environ |= {"FI_PROVIDER": "efa", "VLLM_LOGGING_LEVEL": "DEBUG", "MY_DIARY": "private", "VLLM_API_KEY": "x"}
    files = contents.configuration(machine.site(), [{"name": "decode", "command": "vllm serve"}])
    environ = json.loads(files["configuration/environment.json"])
    assert (environ["FI_PROVIDER"], environ["VLLM_LOGGING_LEVEL"]) == ("efa", "DEBUG")
    assert "MY_DIARY" not in environ
    assert environ["VLLM_API_KEY"] == "[removed]"  # however short
    assert json.loads(files["configuration/processes.json"]) == [{"name": "decode", "command": "vllm serve"}]
    profile = json.loads(files["configuration/profile.json"])
    assert profile["instance"] == "trn2.48xlarge"
    assert set(profile["settings"]) == {"prefill", "decode"}


def test_what_tools_and_kernel_say(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "trn2.48xlarge")
    files = contents.machine(machine.site())
    assert "rdmap47s0" in files["machine/fi_info.txt"]
    assert json.loads(files["machine/neuron-ls.json"])
    assert files["machine/nvidia-smi.txt"] == ""
    assert "Max locked memory" in files["machine/proc-self-limits"]


def test_tools_that_are_not_installed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "trn2.48xlarge")
    machine.environ["PATH"] = "/nowhere"
    assert contents.machine(machine.site())["machine/nvidia-smi.txt"] == "not installed\n"


def test_a_cluster() -> None:
    engines = [Engine("decode", "http://d:8200", info=INFO), Engine("prefill", "http://p:8100", down="refused")]
    said = json.loads(contents.cluster(Cluster("http://x", engines=engines))["cluster.json"])
    assert said["engines"][0]["info"]["block_size"] == INFO.block_size
    assert said["engines"][1] == {"engine": "prefill http://p:8100", "down": "refused", "info": None}
    assert contents.cluster(None) == {}


def test_the_end_of_a_log_begins_with_a_line(tmp_path: Path) -> None:
    log = tmp_path / "decode.log"
    log.write_text("token=abcdefgh\nsecond\nthird\n")
    assert contents._end(log, 18) == "second\nthird\n"
    assert contents._end(log) == log.read_text()


def test_logs_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "proxy.log").write_text(place)
    files = contents.logs([File(tmp_path / place / "proxy.log") for place in ("a", "b", "none")])
    assert files["logs/proxy.log"] == "a"
    assert files["logs/proxy-.log"] == "b"
    assert "cannot be read" in files["logs/proxy--.log"]


def test_a_journal_without_units_is_no_reason_for_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journalctl").write_text("#!/bin/sh\necho 'Failed to add filter for units' >&2\nexit 1\n")
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "Failed to add filter" in contents.logs([Journal(["neuron-pd-*"])])["logs/journal.log"]


def test_versions_name_this_python() -> None:
    assert "pytest==" in contents.versions()
