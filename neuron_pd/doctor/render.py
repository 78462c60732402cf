"""An examination on a terminal, or as plain lines where there is none."""

from itertools import groupby
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from neuron_pd.doctor.examine import Result
from neuron_pd.doctor.findings import Verdict
from neuron_pd.doctor.verdict import Examination

MARKS: Final = {
    Verdict.OK: ("✓", "green"),
    Verdict.WARNING: ("!", "yellow"),
    Verdict.FAILED: ("✗", "bold red"),
    Verdict.NOT_APPLICABLE: ("·", "dim"),
}


def render(examination: Examination, console: Console) -> None:
    """A table for each subject, then what to do; without a terminal a line for each finding, and its fix below it."""
    for subject, results in groupby(examination.results, lambda result: result.subject):
        if console.is_terminal:
            console.print(Text(subject, "bold"))
            console.print(Padding(_table(list(results)), (0, 0, 0, 2)))
        else:
            for result in results:
                console.print(Text(_line(result)), soft_wrap=True)
    console.print(Text(examination.summary, "bold red" if examination.failed else "bold green"), soft_wrap=True)


def _table(results: list[Result]) -> Table:
    table = Table.grid(padding=(0, 1))
    for ratio in (None, None, 1):
        table.add_column(ratio=ratio, overflow="fold")
    for result in results:
        finding = result.finding
        mark, style = MARKS[finding.verdict]
        about = f"{finding.about}: " if finding.about else ""
        table.add_row(Text(mark, style), Text(result.probe), Text(f"{about}{finding.seen}", style))
        if finding.fix:
            table.add_row("", "", Text(f"→ {finding.fix}"))
    return table


def _line(result: Result) -> str:
    finding = result.finding
    about = f" {finding.about}" if finding.about else ""
    line = f"{finding.verdict.value:<14} {result.probe}{about}: {finding.seen}"
    return f"{line}\n{'':<14} → {finding.fix}" if finding.fix else line
