"""The command line as a whole: one line for what is wrong, and help that comes at once."""

import subprocess
import sys

import pytest

from neuron_pd.cli import COMMANDS

HEAVY = ("torch", "vllm", "aiohttp", "matplotlib", "uvloop", "yaml")


def run(*argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "neuron_pd", *argv], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["up", "--proxy-port", "x"], "'x' is not a valid integer"),
        (["up", "--proxy-port", "70000"], "70000 is not in the range"),
        (["demo", "--model", "big"], "'big' is not one of 'tiny', 'smollm2'"),
        (["demo", "--lengths", "60000"], "use --lengths up to"),
        (["demo", "--nonsense"], "No such option"),
        (["model"], "Missing argument"),
        (["bench", "sweep", "--leg", "left"], "'left' is not one of"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(argv: list[str], message: str) -> None:
    done = run(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("neuron-pd: error: ")
    assert message in done.stderr


def test_version_and_help_need_nothing_heavy() -> None:
    code = f"import sys, neuron_pd.cli; sys.exit(any(name in sys.modules for name in {HEAVY}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert run("--version").stdout.startswith("neuron-pd, version")
    listed = run("--help").stdout
    assert all(f"  {name} " in listed for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: neuron-pd {name}")


def test_nothing_shows_the_help() -> None:
    done = run()
    assert done.returncode == 2
    assert "Commands:" in done.stdout + done.stderr
