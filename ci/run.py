"""`python -m ci.run (--all | --leg NAME ...)`: run legs of the matrix, each in a fresh virtual environment.

A leg that this machine cannot run (no such accelerator, a vLLM release that the package registry does not have, no
root for a network namespace) is skipped, with the reason. A table of the outcomes is printed, and added to
$GITHUB_STEP_SUMMARY where that is set. Without --all and --leg the legs are listed.

Exit status 1 when a leg failed, or was skipped under --no-skip; 2 for a leg that does not exist.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.matrix import here, junit, summary
from ci.matrix.junit import FAILED, PASSED, SKIPPED, Outcome, Step
from ci.matrix.legs import ROOT, Leg, legs
from neuron_pd.hosts.machine import observe

NOT_HERE = 3  # a module's status where what it needs cannot be had, which it says
# pip's words for a release that the registry does not have, and not for a registry that does not answer.
ABSENT = r"requirement {} \(from versions: (?!none)"
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")  # asked for by vLLM's wheel, not needed, and apt to mismatch


class NotInstalled(Exception):
    """An environment could not be made; the message is what pip said was wrong, a line each."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment at `place`, and what its tests are told."""

    place: Path
    variables: dict[str, str]

    @property
    def python(self) -> str:
        return str(self.place / "bin" / "python")

    def install(self, leg: Leg) -> None:
        """vLLM, NIXL and neuron-pd. NotInstalled."""
        venv.create(self.place, with_pip=True)
        index = ["--extra-index-url", leg.accelerator.index] if leg.accelerator.index else []
        self._pip("install", "--upgrade", "pip")
        self._pip("install", *index, *leg.requirements, "-e", f"{ROOT}[bench,dev]")
        if leg.accelerator.name == "cpu":
            self._pip("uninstall", "--yes", *COMPANIONS)

    def _pip(self, *arguments: str) -> None:
        command = [self.python, "-m", "pip", "--quiet", *arguments]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.stderr.write(done.stderr)
            raise NotInstalled("\n".join(line for line in done.stderr.splitlines() if line.startswith("ERROR")))

    def run(self, *command: str) -> int:
        """Run a module in the checkout; its exit status."""
        variables = {**os.environ, **self.variables}
        return subprocess.run([self.python, "-m", *command], cwd=ROOT, env=variables, check=False).returncode


def run(leg: Leg, tests: Sequence[str] = ()) -> Outcome:
    """Install and test, where this machine can. `tests` in place of the leg's own, without the modules after them."""
    outcome = Outcome(leg.name)
    machine = observe()
    if why := here.missing(leg, machine):
        outcome.steps.append(Step("machine", SKIPPED, why))
        return outcome
    with tempfile.TemporaryDirectory() as place:
        variables = {**leg.environment, "NEURON_PD_TEST_INSTANCE": here.instance(leg, machine)}
        environment = Environment(Path(place) / "venv", variables)
        outcome.steps.append(_install(environment, leg))
        if outcome.state == PASSED:
            report = Path(place) / "tests.xml"
            tested = _test(environment, leg, tests or leg.tests, report)
            outcome.cases = junit.cases_of(report)
            if tested.state == PASSED and outcome.count("skipped") == len(outcome.cases):
                tested = replace(tested, state=FAILED, why="every test was skipped")
            outcome.steps.append(tested)
            outcome.steps += [_module(environment, name) for name in (() if tests else leg.modules)]
    return outcome


def _install(environment: Environment, leg: Leg) -> Step:
    started = time.monotonic()
    try:
        environment.install(leg)
    except NotInstalled as why:
        seconds = time.monotonic() - started
        if re.search(ABSENT.format(re.escape(leg.release)), str(why)):
            return Step("install", SKIPPED, f"the package registry does not have {leg.release}", seconds)
        return Step("install", FAILED, str(why).partition("\n")[0] or "pip failed", seconds)
    return Step("install", PASSED, seconds=time.monotonic() - started)


def _test(environment: Environment, leg: Leg, tests: Sequence[str], report: Path) -> Step:
    within = (leg.within, environment.python, "-m") if leg.within else ()
    return _step("tests", environment, *within, "pytest", f"--junitxml={report}", *tests)


def _module(environment: Environment, name: str) -> Step:
    step = _step(name, environment, name)
    if step.why == _ended(NOT_HERE):
        return replace(step, state=SKIPPED, why="not available here, as its output says")
    return step


def _step(name: str, environment: Environment, *command: str) -> Step:
    started = time.monotonic()
    status = environment.run(*command)
    seconds = time.monotonic() - started
    return Step(name, FAILED, _ended(status), seconds) if status else Step(name, PASSED, seconds=seconds)


def _ended(status: int) -> str:
    return f"exit status {status}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ci.run", description="Run legs of the test matrix.")
    parser.add_argument("--all", action="store_true", help="every leg")
    parser.add_argument("--leg", action="append", default=[], metavar="NAME", help="a leg; may be given several times")
    parser.add_argument("--tests", action="append", default=[], metavar="PATH", help="these in place of the leg's own")
    parser.add_argument("--junit", type=Path, metavar="DIR", help="write a JUnit file for each leg")
    parser.add_argument("--no-skip", action="store_true", help="a leg that cannot run here counts as failed")
    options = parser.parse_args(argv)
    known = legs()
    if unknown := [name for name in options.leg if name not in known]:
        parser.error(f"no leg {unknown[0]!r}; there are {', '.join(known)}")
    wanted = list(known) if options.all else options.leg
    if not wanted:
        sys.stdout.writelines(f"{name}\n" for name in known)
        return 0
    outcomes = [_run(known[name], options.tests, options.junit) for name in wanted]
    _tell(summary.table(outcomes))
    bad = {FAILED, SKIPPED} if options.no_skip else {FAILED}
    return 1 if any(outcome.state in bad for outcome in outcomes) else 0


def _run(leg: Leg, tests: Sequence[str], reports: Path | None) -> Outcome:
    outcome = run(leg, tests)
    if reports is not None:
        junit.write(outcome, reports / f"{leg.name}.xml")
    sys.stdout.write(f"{leg.name}: {outcome.state}{f' ({outcome.why})' if outcome.why else ''}\n")
    sys.stdout.flush()
    return outcome


def _tell(text: str) -> None:
    sys.stdout.write(text)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a") as summary_page:
            summary_page.write(text)


if __name__ == "__main__":
    sys.exit(main())
