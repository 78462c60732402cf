"""The doctor on real engines: reuse works, and where one thing is wrong it names that."""

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.asking import TOKEN
from tests.e2e.conftest import CLI, PORTS, Cluster

pytestmark = pytest.mark.e2e


def doctor(*argv: str, status: int = 0, token: str = TOKEN) -> list[dict[str, Any]]:
    """The findings."""
    environment = {**os.environ, "NEURON_PD_CONTROL_TOKEN": token}
    done = subprocess.run(
        [*CLI, "doctor", "--json", *argv], capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert done.returncode == status, done.stdout + done.stderr
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


def of(findings: list[dict[str, Any]], probe: str) -> list[dict[str, Any]]:
    return [finding for finding in findings if finding["probe"] == probe]


def failed(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(finding["probe"], finding["about"]) for finding in findings if finding["verdict"] == "failed"]


def test_reuse_works(cluster: Cluster) -> None:
    reads = cluster.stats()["leases_read"]
    findings = doctor("--url", cluster.proxy)
    assert {finding["verdict"] for finding in findings} == {"ok"}, findings
    (reuse,) = of(findings, "reuse")
    assert reuse["seen"].startswith("works: ")
    assert reuse["seen"].endswith("(path read_back)")
    assert cluster.settled()["leases_read"] == reads + 1
    channels = [finding["seen"] for finding in of(findings, "side channels")]
    ports = (PORTS["--prefill-side-channel-port"], PORTS["--decode-side-channel-port"])
    assert channels == [f"on 127.0.0.1:{port}, and reachable" for port in ports]
    assert TOKEN not in json.dumps(findings)


def test_what_up_runs_here_is_found_by_itself(cluster: Cluster) -> None:
    """With this machine, which is ready for the CPU profile, and its ports in use by what is up."""
    findings = doctor("--instance", "cpu")
    assert of(findings, "proxy")[0]["about"] == cluster.proxy
    assert of(findings, "NIXL backend")[0]["verdict"] == "ok"
    assert of(findings, "reuse")[0]["verdict"] == "ok"
    assert of(findings, "EFA devices")[0]["verdict"] == "not applicable"


def test_the_logs_of_what_runs_here(cluster: Cluster) -> None:
    """Found by themselves: the turn as P and the proxy write it; the doctor's own conversation stays unnamed."""
    doctor("--url", cluster.proxy)
    done = subprocess.run([*CLI, "logs", "--read-backs"], capture_output=True, text=True, check=True, timeout=60)
    sources = [line.split()[2] for line in done.stdout.splitlines()]
    assert {"prefill", "proxy"} <= set(sources)
    named = subprocess.run([*CLI, "logs", "--grep", "neuron-pd-doctor"], capture_output=True, text=True, check=True)
    assert named.stdout == ""


def test_a_report_of_what_runs_here(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "report.tar.gz"
    command = [*CLI, "report", "--url", cluster.proxy, "--no-self-test", "--out", str(out)]
    environment = {**os.environ, "NEURON_PD_CONTROL_TOKEN": TOKEN}
    subprocess.run(command, capture_output=True, check=True, env=environment, timeout=300)
    with tarfile.open(out) as archive:
        texts = {entry.name: archive.extractfile(entry) for entry in archive}
        read = {name.partition("/")[2]: file.read().decode() for name, file in texts.items() if file is not None}
    assert {"doctor.json", "cluster.json", "logs/prefill.log", "logs/decode.log", "logs/proxy.log"} <= set(read)
    engines = json.loads(read["cluster.json"])["engines"]
    assert [engine["info"]["role"] for engine in engines] == ["prefill", "decode"]
    assert all(TOKEN not in text for text in read.values())


def test_a_wrong_token(cluster: Cluster) -> None:
    wrong = failed(doctor("--url", cluster.proxy, status=1, token="another"))
    assert wrong == [("control token", f"prefill {cluster.prefill}"), ("control token", f"decode {cluster.decode}")]


def test_an_engine_in_the_wrong_place(cluster: Cluster) -> None:
    wrong = failed(doctor("--prefill", cluster.decode, "--decode", cluster.prefill, status=1))
    assert ("engine settings", f"prefill {cluster.decode}") in wrong
