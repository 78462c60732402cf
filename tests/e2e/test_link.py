"""`bench sweep --emulate-link`: real engines in network namespaces, at two rates."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from neuron_pd.bench.records import Record, read_run
from neuron_pd.launcher.link import LEAST_BURST

from .conftest import CLI

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("tc") is None or shutil.which("ip") is None, reason="needs root, ip and tc"
    ),
]
RATE = 100e6  # bits a second
SWEEP = ["bench", "sweep", "--proxy-port", "18050", "--lengths", "1024", "--turns", "2", "--reply-tokens", "8"]


def left_over() -> str:
    tools = (["ip", "netns"], ["ip", "-o", "link"])
    found = [subprocess.run(tool, capture_output=True, text=True, check=True).stdout for tool in tools]
    return "".join(line for line in "".join(found).splitlines(keepends=True) if "npd" in line)


def test_the_rate_shows_in_the_transfers(tmp_path: Path) -> None:
    before = left_over()
    command = [*CLI, *SWEEP, "--emulate-link", "100mbit,unlimited", "--out", str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert left_over() == before
    run = read_run(tmp_path / "run")
    slow, fast = ([r for r in run.records if r.link == link and r.turn == 2] for link in ("100mbit", "unlimited"))
    for off, on in (sorted(side, key=lambda r: r.leg) for side in (slow, fast)):
        assert (off.leg, on.leg) == ("off", "on")
        assert on.report is not None
        assert on.report.reused >= 1024
        assert on.reply == off.reply
    for record in slow:
        for read in (record.read_back, record.hand_off):
            assert read is not None
            # No transfer is faster than its link: it cannot have gone any other way.
            assert read.seconds >= 0.8 * 8 * max(0.0, read.bytes - LEAST_BURST * read.count) / RATE
    assert any(transfer_seconds(record) > 1.0 for record in slow)


def transfer_seconds(record: Record) -> float:
    return record.read_back.seconds if record.read_back else 0.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop_it_takes_everything_down(tmp_path: Path, number: signal.Signals) -> None:
    before = left_over()
    command = [*CLI, *SWEEP, "--emulate-link", "1gbit", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    while left_over() == before and process.poll() is None:
        time.sleep(0.1)
    time.sleep(3)
    process.send_signal(number)
    assert process.wait(60) == 130
    assert left_over() == before
