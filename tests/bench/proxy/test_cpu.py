"""Processor time of other processes."""

import subprocess
import sys

import psutil
import pytest

from neuron_pd.bench.proxy.cpu import cpu_seconds

BURNS = "sum(range(5_000_000)); print(flush=True); input()"
STARTS_ONE = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURNS!r}])"


@pytest.mark.parametrize("code", [BURNS, STARTS_ONE], ids=["own", "of a child"])
def test_it_is_counted(code: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
        times = [one.cpu_times() for one in family]
        assert cpu_seconds(process.pid) == pytest.approx(sum(used.user + used.system for used in times), abs=0.05)
        assert cpu_seconds(process.pid) > 0.05
        process.communicate(b"\n")
    assert cpu_seconds(process.pid) == 0
