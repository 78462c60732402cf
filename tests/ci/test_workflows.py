import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ci import workflows
from ci.matrix.legs import legs

MADE = {name: yaml.safe_load(text) for name, text in workflows.workflows().items()}


def legs_of(name: str) -> list[str]:
    found: list[str] = MADE[name]["jobs"]["leg"]["strategy"]["matrix"]["leg"]
    return found


def test_the_workflows_are_what_the_matrix_makes() -> None:
    assert workflows.drift() == []


def test_each_leg_is_in_one_workflow() -> None:
    found = [leg for name in MADE if name != "release.yml" for leg in legs_of(name)]
    assert sorted(found) == sorted(legs())


def test_accelerators_are_found_by_their_labels_and_a_bare_runner_fails() -> None:
    for name, prefix in (("trn2.yml", "neuron-"), ("p5en.yml", "cuda-")):
        job = MADE[name]["jobs"]["leg"]
        assert job["runs-on"] == ["self-hosted", "linux", name.removesuffix(".yml")]
        assert all(leg.startswith(prefix) for leg in legs_of(name))
        assert any("--no-skip" in step.get("run", "") for step in job["steps"])


def test_hosted_runners_run_what_ci_runs_and_the_cpu_legs() -> None:
    jobs = MADE["ci.yml"]["jobs"]
    assert [step["run"] for step in jobs["check"]["steps"] if "run" in step] == [".ci/run"]
    assert all(leg.startswith("cpu-") for leg in legs_of("ci.yml"))


def test_every_command_of_ours_takes_its_options() -> None:
    """The options that the workflows give are options that the modules have."""
    steps: list[dict[str, Any]] = [
        step for body in MADE.values() for job in body["jobs"].values() for step in job["steps"]
    ]
    commands = {step["run"].partition("-m ci.")[2] for step in steps if "-m ci." in step.get("run", "")}
    assert {command.split()[0] for command in commands} == {"run", "release"}
    for command in commands:
        module, *words = command.split()
        asked = [sys.executable, "-m", f"ci.{module}", "--help"]
        done = subprocess.run(asked, cwd=workflows.ROOT, capture_output=True, text=True, check=True)
        assert all(word in done.stdout for word in words if word.startswith("--")), command


def test_githubs_schema_takes_them() -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed: pip install 'neuron-pd[dev]'")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    files = sorted(map(str, workflows.PLACE.glob("*.yml")))
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_drift_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "workflows"
    assert workflows.main(["--check"], place) == 1
    assert "ci.yml is not there: run `make docs`" in capsys.readouterr().err
    assert workflows.main([], place) == 0
    assert workflows.main(["--check"], place) == 0
    (place / "ci.yml").write_text("name: other\n")
    (place / "old.yml").write_text("name: old\n")
    assert workflows.drift(place) == [
        "ci.yml is not what the matrix makes: run `make docs`",
        "old.yml is not from the matrix: delete it",
    ]
