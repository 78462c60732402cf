import xml.etree.ElementTree as ElementTree

from ci.matrix.junit import FAILED, PASSED, SKIPPED, Outcome, Step
from ci.matrix.summary import table


def case(mark: str = "") -> ElementTree.Element:
    return ElementTree.fromstring(f"<testcase name='one'>{f'<{mark}/>' if mark else ''}</testcase>")


def test_a_row_a_leg() -> None:
    ran = Outcome("ran", [Step("install", PASSED, seconds=60), Step("tests", PASSED, seconds=30.4)], [case(), case()])
    broke = Outcome(
        "broke", [Step("tests", FAILED, "exit status 1", 1)], [case("failure"), case("error"), case("skipped")]
    )
    skipped = Outcome("skipped", [Step("machine", SKIPPED, "a | b")])
    assert table([ran, broke, skipped]).splitlines()[2:] == [
        "| `ran` | passed | 2 | 0 | 0 | 90 s |  |",
        "| `broke` | failed | 3 | 2 | 1 | 1 s | tests: exit status 1 |",
        "| `skipped` | skipped |  |  |  |  | machine: a \\| b |",
    ]
