"""`python -m ci.workflows [--check]`: write `.github/workflows` from the matrix; --check says what would change.

`ci.yml` runs `.ci/run` and the legs of hosted runners on every change; each kind of machine that is not hosted has a
workflow of its own, on runners with its labels, every night and on request. `release.yml` builds and publishes a tag.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from ci.matrix.legs import ROOT, Accelerator, Leg, legs

PLACE: Final = ROOT / ".github" / "workflows"
HEAD: Final = "# Made by `python -m ci.workflows` from ci/matrix.yaml.\n"
HOSTED: Final = "ubuntu-24.04"
PYTHON: Final = "3.12"
NIGHTLY: Final = "23 3 * * *"
REPORTS: Final = "reports"
LEG_MINUTES: Final = 120
CHECK_MINUTES: Final = 90

Map = dict[str, Any]


def workflows() -> dict[str, str]:
    """Every workflow's text, by file name."""
    by_machine: dict[str, list[Leg]] = {}
    for leg in legs().values():
        by_machine.setdefault(leg.accelerator.label, []).append(leg)
    made = {"release": _release()}
    for label, found in by_machine.items():
        machine = found[0].accelerator
        if machine.is_hosted:
            made["ci"] = _hosted(machine, found)
        else:
            made[label] = _self_hosted(machine, found)
    return {f"{name}.yml": HEAD + _text(body) for name, body in made.items()}


def _hosted(machine: Accelerator, found: Sequence[Leg]) -> Map:
    jobs = {
        "check": {"runs-on": HOSTED, "timeout-minutes": CHECK_MINUTES, "steps": [*_source(), _run(".ci/run")]},
        # Root, for the network namespaces of the legs over libfabric's tcp provider.
        "leg": _legs(machine, found, "sudo --preserve-env=GITHUB_STEP_SUMMARY .runner/bin/python -m ci.run"),
    }
    on = {"push": {"branches": ["main"]}, "pull_request": None, "workflow_dispatch": None}
    return _workflow("ci", on, jobs)


def _self_hosted(machine: Accelerator, found: Sequence[Leg]) -> Map:
    # A runner that lacks what its label promises must not look as if it had tested.
    job = _legs(machine, found, ".runner/bin/python -m ci.run --no-skip")
    return _workflow(machine.label, {"schedule": [{"cron": NIGHTLY}], "workflow_dispatch": None}, {"leg": job})


def _legs(machine: Accelerator, found: Sequence[Leg], command: str) -> Map:
    # neuron-pd's own light dependencies are all that the runner itself needs.
    steps = [
        *_source(setup=machine.is_hosted),
        _run("python3 -m venv .runner && .runner/bin/pip install --quiet -e ."),
        _run(f"{command} --leg ${{{{ matrix.leg }}}} --junit {REPORTS}"),
        {**_upload("${{ matrix.leg }}", REPORTS), "if": "always()"},
    ]
    strategy: Map = {"fail-fast": False, "matrix": {"leg": [leg.name for leg in found]}}
    if not machine.is_hosted:
        strategy["max-parallel"] = 1  # a machine has room for one leg at a time
    return {"runs-on": machine.runs_on, "timeout-minutes": LEG_MINUTES, "strategy": strategy, "steps": steps}


def _release() -> Map:
    built = {"name": "dist", "path": "dist"}
    build = {
        "runs-on": HOSTED,
        "timeout-minutes": 30,
        "steps": [
            *_source(),
            _run("python -m pip install --quiet -e '.[release]'"),
            _run('python -m ci.release --out dist --tag "$GITHUB_REF_NAME"'),
            _upload("dist", "dist"),
        ],
    }
    attach = {
        "needs": "build",
        "runs-on": HOSTED,
        "permissions": {"contents": "write"},
        "steps": [
            _use("actions/download-artifact@v4", **built),
            {
                "env": {"GH_TOKEN": "${{ github.token }}"},
                **_run('gh release create "$GITHUB_REF_NAME" --repo "$GITHUB_REPOSITORY" --generate-notes dist/*'),
            },
        ],
    }
    publish = {
        "needs": "build",
        "runs-on": HOSTED,
        "environment": "pypi",
        "permissions": {"id-token": "write"},
        "steps": [
            _use("actions/download-artifact@v4", **built),
            _run("mkdir packages && mv dist/*.whl dist/*.tar.gz packages"),
            _use("pypa/gh-action-pypi-publish@release/v1", **{"packages-dir": "packages"}),
        ],
    }
    return _workflow("release", {"push": {"tags": ["v*"]}}, {"build": build, "attach": attach, "publish": publish})


def _workflow(name: str, on: Map, jobs: Map) -> Map:
    return {"name": name, "on": on, "permissions": {"contents": "read"}, "jobs": jobs}


def _source(*, setup: bool = True) -> list[Map]:
    """The checkout, and Python where the machine is not ours."""
    python = [_use("actions/setup-python@v5", **{"python-version": PYTHON})] if setup else []
    return [_use("actions/checkout@v4"), *python]


def _use(action: str, **given: str) -> Map:
    return {"uses": action, **({"with": given} if given else {})}


def _run(command: str) -> Map:
    return {"run": command}


def _upload(name: str, path: str) -> Map:
    return _use("actions/upload-artifact@v4", name=name, path=path)


def _text(body: Map) -> str:
    return yaml.dump(body, Dumper=_Plain, sort_keys=False, width=120)


class _Plain(yaml.SafeDumper):
    """No anchors: GitHub's YAML has none that are worth reading."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def drift(place: Path = PLACE) -> list[str]:
    """What is not as it would be made, a line each."""
    made = workflows()
    there = {path.name for path in place.glob("*.yml")}
    stale = [name for name, text in made.items() if name in there and (place / name).read_text() != text]
    return [
        *(f"{name} is not there: run `make docs`" for name in made if name not in there),
        *(f"{name} is not what the matrix makes: run `make docs`" for name in stale),
        *(f"{name} is not from the matrix: delete it" for name in sorted(there - set(made))),
    ]


def main(argv: Sequence[str] | None = None, place: Path = PLACE) -> int:
    """Write the workflows, or check them; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ci.workflows", description="Make the workflows from the matrix.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 when something would change")
    if not parser.parse_args(argv).check:
        _write(workflows().items(), place)
        return 0
    found = drift(place)
    sys.stderr.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


def _write(texts: Iterable[tuple[str, str]], place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in texts:
        (place / name).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
