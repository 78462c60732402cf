"""`neuron-pd logs` as a person runs it."""

import os
import re
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from neuron_pd.cli.logs import moment
from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell

shell = shell_fixture
NOW = datetime.now()


def line(text: str, ago: int = 0) -> str:
    return f"INFO {NOW - timedelta(minutes=ago):%m-%d %H:%M:%S} [x.py:1] {text}\n"


@pytest.fixture
def run(shell: Shell) -> Path:
    """The logs of a run of `up` that is over."""
    place = shell.home / "state" / "neuron-pd" / "runs" / "20261130-105900-1"
    place.mkdir(parents=True)
    turn = "neuron-pd: turn request={} path={} reason={} prompt=9"
    (place / "prefill.log").write_text(
        line(turn.format("cmpl-1", "read_back", "verified"), 90) + line(turn.format("cmpl-2", "recompute", "mismatch"))
    )
    (place / "decode.log").write_text(line("KV Transfer metrics: Num successful transfers=1", 1))
    return place


def texts(shell: Shell, *argv: str) -> list[str]:
    result = shell.run("logs", *argv)
    assert (result.returncode, result.stderr) == (0, "")
    return [found[1] for found in re.finditer(r"(request=\S+|KV Transfer)", result.stdout)]


def test_the_last_run_is_found_and_filtered(shell: Shell, run: Path) -> None:
    assert texts(shell) == ["request=cmpl-1", "KV Transfer", "request=cmpl-2"]
    assert texts(shell, "--read-backs") == ["request=cmpl-1"]
    assert texts(shell, "--declines") == ["request=cmpl-2"]
    assert texts(shell, "--transfers", "--declines") == ["KV Transfer", "request=cmpl-2"]
    assert texts(shell, "--grep", "cmpl-1") == ["request=cmpl-1"]
    assert texts(shell, "--since", "1h") == ["KV Transfer", "request=cmpl-2"]
    assert texts(shell, "--lines", "1") == ["request=cmpl-2"]
    assert texts(shell, str(run / "decode.log")) == ["KV Transfer"]


def test_it_follows_until_ctrl_c(shell: Shell, run: Path) -> None:
    process = shell.start("logs", "--follow", "--declines", str(run))
    assert process.stdout is not None
    assert "cmpl-2" in process.stdout.readline()
    with (run / "prefill.log").open("a") as log:
        log.write(line("neuron-pd: turn request=cmpl-3 path=recompute reason=lease_gone"))
    assert "cmpl-3" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) in (0, 130)


def test_what_runs_is_found_wherever_its_logs_are(shell: Shell) -> None:
    """`up --run-dir` keeps them anywhere; the record of what was started knows."""
    elsewhere = shell.home / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "proxy.log").write_text(line("request=here"))
    arguments = (os.getpid(), "proxy", "proxy", 1, str(elsewhere / "proxy.log"))
    remember = f"from neuron_pd.launcher.processes import remember; remember(*{arguments})"
    shell.run("-c", remember, command=(sys.executable,))
    assert texts(shell) == ["request=here"]


def test_nothing_to_find(shell: Shell) -> None:
    message = shell.refused("logs", PATH=str(shell.home))
    assert "nothing was started here" in message
    assert "name the files or the --unit" in message


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--since", "yesterday"], "--since 'yesterday' is no time"),
        (["--since", "99999999999d"], "--since '99999999999d' is no time"),
        (["/nowhere"], "there is no log /nowhere"),
    ],
)
def test_what_is_typed_wrong(shell: Shell, run: Path, argv: list[str], message: str) -> None:
    assert message in shell.refused("logs", *argv)


def test_moments() -> None:
    assert moment("90s", NOW) == NOW - timedelta(seconds=90)
    assert moment("2d", NOW) == NOW - timedelta(days=2)
    assert moment("2026-11-30 10:00", NOW) == datetime(2026, 11, 30, 10)
    assert moment("2026-11-30T10:00:00Z", NOW).astimezone(UTC) == datetime(2026, 11, 30, 10, tzinfo=UTC)
