import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ci.matrix import junit
from ci.matrix.junit import FAILED, PASSED, SKIPPED, Outcome, Step

PYTESTS = """<testsuites><testsuite><testcase classname="a" name="one"/>
<testcase classname="a" name="two"><failure message="no">…</failure></testcase>
<testcase classname="a" name="three"><skipped message="not here"/></testcase></testsuite></testsuites>"""


def written(outcome: Outcome, place: Path) -> ElementTree.Element:
    junit.write(outcome, place / "new" / "leg.xml")
    suite = ElementTree.parse(place / "new" / "leg.xml").find("testsuite")
    assert suite is not None
    return suite


def test_a_skipped_leg_is_skipped_with_its_reason(tmp_path: Path) -> None:
    suite = written(Outcome("leg", [Step("machine", SKIPPED, "no GPU & no <card>")]), tmp_path)
    assert [suite.get(name) for name in ("name", "tests", "failures", "skipped")] == ["leg", "1", "0", "1"]
    (case,) = suite
    assert case.find("skipped").get("message") == "no GPU & no <card>"  # type: ignore[union-attr]


def test_pytests_cases_and_the_steps_around_them_are_one_suite(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(PYTESTS)
    steps = [Step("install", PASSED, seconds=2), Step("tests", FAILED, "exit status 1", 3)]
    suite = written(Outcome("leg", steps, junit.cases_of(report)), tmp_path)
    assert [case.get("name") for case in suite] == ["one", "two", "three", "install", "tests"]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")] == [
        "5",
        "2",
        "0",
        "1",
        "5.0",
    ]


def test_no_report_is_no_case(tmp_path: Path) -> None:
    assert junit.cases_of(tmp_path / "none.xml") == []


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([SKIPPED], SKIPPED),
        ([PASSED, SKIPPED], PASSED),
        ([PASSED, FAILED, SKIPPED], FAILED),
        ([PASSED, PASSED], PASSED),
    ],
)
def test_what_became_of_a_leg(states: list[str], expected: str) -> None:
    outcome = Outcome("leg", [Step(str(number), state, state) for number, state in enumerate(states)])
    assert outcome.state == expected
    assert (FAILED in outcome.why) == (expected == FAILED)
