"""The outcomes of a run as a Markdown table."""

from collections.abc import Iterable

from ci.matrix.junit import Outcome

HEAD = "| leg | outcome | tests | failed | skipped | time | why |\n|---|---|---:|---:|---:|---:|---|\n"


def table(outcomes: Iterable[Outcome]) -> str:
    """A row a leg; tests are pytest's."""
    return HEAD + "".join(map(_row, outcomes))


def _row(outcome: Outcome) -> str:
    failed = outcome.count("failure") + outcome.count("error")
    counts = [len(outcome.cases), failed, outcome.count("skipped")] if outcome.cases else ["", "", ""]
    took = f"{outcome.seconds:.0f} s" if outcome.seconds else ""
    cells = [f"`{outcome.leg}`", outcome.state, *counts, took, outcome.why.replace("|", "\\|")]
    return f"| {' | '.join(map(str, cells))} |\n"
