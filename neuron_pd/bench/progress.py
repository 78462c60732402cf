"""A sweep's live progress in the terminal: a bar, and a line for each turn with its TTFT as it goes."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from neuron_pd.bench.records import OFF, Record
from neuron_pd.bench.sweep import Progress as OnStep
from neuron_pd.bench.sweep import Step
from neuron_pd.core.decision import Path


@contextmanager
def live(console: Console) -> Iterator[OnStep]:
    """Yields the callback that a sweep reports its steps to."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("sizing the text", total=None)

        def on_step(step: Step) -> None:
            bar.update(task, description=doing(step), completed=step.done, total=step.total)
            if step.record is not None:
                console.print(line(step.record), highlight=False)

        yield on_step


def doing(step: Step) -> str:
    if step.turn == 0:
        return f"warm-up at {step.setting}"
    return ", ".join(part for part in (f"{step.leg.upper():3} {step.setting}", f"turn {step.turn}") if part)


def line(record: Record) -> str:
    """One measured turn, as rich markup."""
    tokens = record.length or record.prompt_tokens or 0
    more = str(record.setting._replace(length=0))
    where = "  ".join(
        part for part in (f"{record.leg.upper():3}  {tokens:>6,} tokens", more, f"turn {record.turn}") if part
    )
    if not record.ok:
        return f"[red]{where}  failed: {escape(record.error)}[/red]"
    ttft = "TTFT        –" if record.ttft_ms is None else f"TTFT {record.ttft_ms:7,.0f} ms"
    return f"{where}  {ttft}  {escape(served(record))}  {record.note}".rstrip()


def served(record: Record) -> str:
    """How the turn was served, in a few words."""
    report = record.report
    if report is None:
        return ""
    if report.path == Path.DIRECT:
        return f"decoded directly, {report.local:,} of {report.prompt:,} tokens held"
    if report.reused:
        return f"read {report.reused:,} of {report.prompt:,} tokens back"
    return "" if record.leg == OFF else f"recomputed ({report.reason})"
