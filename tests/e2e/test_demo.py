"""`neuron-pd demo` as a stranger runs it, with short conversations."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import CLI, PORTS, descendants, port_flags

pytestmark = pytest.mark.e2e

LENGTH_KEYS = {
    "ttft_ms_off",
    "ttft_ms_on",
    "prefill_ms_off",
    "prefill_ms_on",
    "transfer_ms_on",
    "reused_tokens",
    "prompt_tokens",
}


def demo(*flags: str, place: Path) -> "subprocess.Popen[str]":
    command = [*CLI, "demo", "--out", str(place / "out"), *port_flags(), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def listeners() -> set[int]:
    """Which of the demo's ports are listened on."""
    found = {connection.laddr.port for connection in psutil.net_connections("tcp") if connection.status == "LISTEN"}
    return found & set(PORTS.values())


def test_everything_that_it_claims_holds_and_nothing_is_left(tmp_path: Path) -> None:
    process = demo("--lengths", "512,1024", "--turns", "4", "--json", str(tmp_path / "found.json"), place=tmp_path)
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["lengths"].keys() == {"512", "1024"}
    for figures in found["lengths"].values():
        assert figures.keys() >= LENGTH_KEYS
        assert all(figures[name] is not None for name in LENGTH_KEYS)
        assert 0 < figures["reused_tokens"] < figures["prompt_tokens"]
        assert figures["reused_tokens"] % 128 == 0
        assert 0 < figures["transfer_ms_on"] < figures["prefill_ms_on"]
    assert found["answers_equal"] == found["answers_total"] == 8
    assert found["proofs"] == {"edited_history": True, "fork": True, "no_client_id": True}
    assert found["retention"] == {"pinned_blocks": 0, "open_leases": 0, "kv_blocks_used": 0}
    assert {"vllm", "nixl", "torch", "neuron_pd"} <= found["versions"].keys()
    report = (tmp_path / "out" / "report.html").read_text()
    assert "1,024" in report
    assert {"ttft.png", "prefill.png", "records.jsonl"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert "answers    8 of 8" in out
    assert listeners() == set()


def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    process = demo("--lengths", "512", place=tmp_path)
    family: set[psutil.Process] = set()
    for _ in range(300):
        family |= descendants(process.pid)
        if (tmp_path / "out" / "logs" / "decode.log").exists() and len(family) > 4:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not [child for child in family if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def test_a_port_in_use_starts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", PORTS["--decode-port"])):
        process = demo(place=tmp_path)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (2, "")
    lines = err.strip().splitlines()
    assert len(lines) == 1
    assert str(PORTS["--decode-port"]) in lines[0]
    assert str(os.getpid()) in lines[0]
    assert not (tmp_path / "out" / "logs").exists()
