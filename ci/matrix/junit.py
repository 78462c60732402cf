"""JUnit of a leg: pytest's own testcases, and one for each step around them (the install, the modules after)."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
MARKS: Final = {FAILED: "failure", SKIPPED: "skipped"}


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a leg does, by name: passed, failed or skipped, and why. `seconds` it took."""

    name: str
    state: str
    why: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What became of a leg. `cases` are pytest's testcases as it wrote them."""

    leg: str
    steps: list[Step] = field(default_factory=list)
    cases: list[ElementTree.Element] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Failed when anything did; skipped when nothing ran."""
        states = {step.state for step in self.steps}
        return FAILED if FAILED in states else PASSED if PASSED in states else SKIPPED

    @property
    def why(self) -> str:
        """Why it failed or was skipped; of a leg that passed, what was skipped in it."""
        wanted = FAILED if self.state == FAILED else SKIPPED
        return "; ".join(f"{step.name}: {step.why}" for step in self.steps if step.state == wanted)

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    def count(self, mark: str) -> int:
        """How many of pytest's testcases have this mark: "failure", "error" or "skipped"."""
        return sum(case.find(mark) is not None for case in self.cases)


def cases_of(report: Path) -> list[ElementTree.Element]:
    """The testcases of pytest's report; none where it wrote no report."""
    return list(ElementTree.parse(report).iter("testcase")) if report.exists() else []


def write(outcome: Outcome, path: Path) -> None:
    """One testsuite, named after the leg."""
    cases = [*outcome.cases, *_steps(outcome)]
    suite = ElementTree.Element("testsuite", name=outcome.leg, tests=str(len(cases)), time=f"{outcome.seconds:.1f}")
    for name, mark in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(mark) is not None for case in cases)))
    suite.extend(cases)
    whole = ElementTree.Element("testsuites")
    whole.append(suite)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(whole).write(path, encoding="utf-8", xml_declaration=True)


def _steps(outcome: Outcome) -> Iterable[ElementTree.Element]:
    for step in outcome.steps:
        case = ElementTree.Element("testcase", classname=outcome.leg, name=step.name, time=f"{step.seconds:.1f}")
        if mark := MARKS.get(step.state):
            ElementTree.SubElement(case, mark, message=step.why)
        yield case
