import threading
from collections.abc import Iterator

from neuron_pd.doctor.examine import examine
from neuron_pd.doctor.findings import Finding, Verdict, ok, probe, warning


@probe("Test", "good", "nothing")
def good(place: str) -> Finding:
    """whether the place
    is good"""
    return ok(f"{place} is good")


@probe("Test", "several", "nothing")
def several(place: str) -> Iterator[Finding]:
    """several things"""
    yield ok("one", "1")
    yield warning("two", "do it", "2")


@probe("Test", "raises", "nothing")
def raises(place: str) -> Finding:
    """something that is not there"""
    raise PermissionError(13, "Permission denied", "/proc/1/environ")


@probe("Test", "hangs", "nothing")
def hangs(place: str) -> Finding:
    """something for ever"""
    threading.Event().wait()
    return ok("never")


def test_every_finding_in_the_order_of_the_probes() -> None:
    results = examine([several, good], "here", 5)
    assert [(result.probe, result.finding.seen) for result in results] == [
        ("several", "one"),
        ("several", "two"),
        ("good", "here is good"),
    ]
    assert results[1].as_json() == {
        "subject": "Test", "probe": "several", "about": "2", "verdict": "warning", "seen": "two", "fix": "do it",
    }  # fmt: skip


def test_what_raises_is_a_warning_and_what_hangs_a_failure() -> None:
    raised, hung, fine = examine([raises, hangs, good], "here", 0.2)
    assert raised.finding.verdict is Verdict.WARNING
    assert "PermissionError" in raised.finding.seen
    assert (hung.finding.verdict, hung.finding.seen) == (Verdict.FAILED, "no answer within 0.2 s")
    assert fine.finding.verdict is Verdict.OK


def test_the_docstring_is_what_it_looks_at() -> None:
    assert good.looks_at == "whether the place is good"
