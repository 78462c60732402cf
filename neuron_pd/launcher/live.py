"""A supervisor's events as live lines on a terminal, or as plain lines where there is none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from neuron_pd.launcher.supervisor import Event, Progress

WIDTH: Final = 70  # characters of a log line
DONE: Final = ("ready", "stopped")


@contextmanager
def live(console: Console) -> Iterator[Progress]:
    """A callback for Supervisor's events, shown until the block ends."""
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.fields[name]:8}"), TimeElapsedColumn())
    described = TextColumn("{task.description}", markup=False)
    with Bars(*columns, described, console=console, redirect_stdout=False) as bars:
        yield Rows(bars)


class Lines:
    """One line for each change of phase."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phases: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        if self._phases.get(event.name) == event.phase:
            return
        self._phases[event.name] = event.phase
        seconds = f" after {event.seconds:.0f} s" if event.phase in DONE else ""
        self._console.print(Text(f"{event.name}: {event.phase}{seconds}"), soft_wrap=True)


class Rows:
    """A row for each child, with the end of its log while it starts."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._rows: dict[str, TaskID] = {}

    def __call__(self, event: Event) -> None:
        bars = self._bars
        if event.name not in self._rows:
            self._rows[event.name] = bars.add_task("", total=1, name=event.name)
        row = self._rows[event.name]
        text = f"{event.phase} {event.detail}".strip()
        done = event.phase in DONE
        bars.update(row, description=text[:WIDTH], completed=int(done))
