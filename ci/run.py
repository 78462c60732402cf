"""`python -m ci.run [--leg NAME]... [--junit DIR]`: run legs of the matrix, each in a fresh virtual environment.

Without --leg: list them. Exit status 1 when a leg failed, 2 for a leg that does not exist.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
NOT_HERE = 3  # a module's status where what it needs cannot be had, which it says
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")  # asked for by vLLM's wheel, not needed, and apt to mismatch


@dataclass(frozen=True)
class Leg:
    """One row of matrix.yaml.

    `environment` is for its tests; `within` is a module that runs them where they can work (ci.libfabric); `modules`
    are run after them.
    """

    name: str
    vllm: str
    nixl: str
    tests: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    within: str = ""

    def run(self, junit: Path | None) -> bool:
        """Install and test; whether all passed."""
        with tempfile.TemporaryDirectory() as place:
            venv.create(place, with_pip=True)
            python = str(Path(place) / "bin" / "python")
            pip = [python, "-m", "pip", "--quiet"]
            wanted = [self.vllm, self.nixl, "gguf>=0.17", "accelerate>=1.10", "-e", f"{ROOT}[bench,dev]"]
            subprocess.run([*pip, "install", "--upgrade", "pip"], check=True)
            subprocess.run([*pip, "install", *wanted], check=True)
            subprocess.run([*pip, "uninstall", "--yes", *COMPANIONS], check=True)
            report = [] if junit is None else [f"--junitxml={junit / self.name}.xml"]
            passed = self.test(python, *report)
            outcomes = [self._module(python, name) for name in self.modules]
            return passed and all(outcome in (0, NOT_HERE) for outcome in outcomes)

    def test(self, python: str, *options: str) -> bool:
        """Run its tests with the interpreter `python`; whether all passed."""
        within = (self.within, python, "-m") if self.within else ()
        return self._module(python, *within, "pytest", *options, *self.tests) == 0

    def _module(self, python: str, *command: str) -> int:
        environment = {**os.environ, **self.environment}
        return subprocess.run([python, "-m", *command], cwd=ROOT, env=environment, check=False).returncode


def legs() -> dict[str, Leg]:
    """The matrix, by name."""
    rows = yaml.safe_load((ROOT / "ci" / "matrix.yaml").read_text())["legs"]
    return {name: _leg(name, **row) for name, row in rows.items()}


def _leg(name: str, tests: list[str], modules: list[str] | None = None, **row: Any) -> Leg:
    return Leg(name=name, tests=tuple(tests), modules=tuple(modules or ()), **row)


def main() -> int:
    """Run what was asked for; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ci.run", description="Run legs of the test matrix.")
    parser.add_argument("--leg", action="append", default=[], metavar="NAME", help="a leg; may be given several times")
    parser.add_argument("--junit", type=Path, metavar="DIR", help="write a JUnit file for each leg")
    options = parser.parse_args()
    known = legs()
    if unknown := [name for name in options.leg if name not in known]:
        parser.error(f"no leg {unknown[0]!r}; there are {', '.join(known)}")
    if not options.leg:
        sys.stdout.writelines(f"{name}\n" for name in known)
        return 0
    outcomes = {name: known[name].run(options.junit) for name in options.leg}
    sys.stdout.writelines(f"{name}: {'passed' if passed else 'FAILED'}\n" for name, passed in outcomes.items())
    return 0 if all(outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
