"""Where the servers' logs are: files, and the journal of their units."""

import os
import select
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuron_pd.errors import UsageError

POLL_SECONDS: Final = 0.25
UNITS: Final = "neuron-pd-*"
JOURNAL: Final = ("journalctl", "--quiet", "--no-pager", "--output=short-iso")


@dataclass(frozen=True, slots=True)
class File:
    """A server's log file; its name says whose it is."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    def lines(self, follow: bool) -> Iterator[str | None]:
        """Its lines. With `follow` for ever: None whenever there is nothing new, the new file's after a rotation.

        UsageError where it cannot be read.
        """
        try:
            stream = self.path.open(errors="replace")
        except OSError as error:
            raise UsageError(f"cannot read the log {self.path}: {error.strerror}; name others") from error
        try:
            part = ""
            while True:
                if line := stream.readline():
                    part += line
                    if part.endswith("\n") or not follow:
                        yield part
                        part = ""
                    continue
                if not follow:
                    return
                yield None
                if _was_replaced(self.path, stream.fileno(), stream.tell()):
                    stream.close()
                    stream = self.path.open(errors="replace")
        finally:
            stream.close()


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of units, by a pattern of their names."""

    units: Sequence[str]
    since: str | None = None

    @property
    def name(self) -> str:
        return "journal"

    def lines(self, follow: bool) -> Iterator[str | None]:
        """As `File.lines`. UsageError where there is no journal to read."""
        chosen = [f"--unit={unit}" for unit in self.units] + ([f"--since={self.since}"] if self.since else [])
        try:
            process = subprocess.Popen(
                [*JOURNAL, *chosen, *(["--follow", "--lines=all"] if follow else [])],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except FileNotFoundError:
            raise UsageError("journalctl is not installed here: name the log files") from None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield from _pieces(process.stdout.fileno())
            if process.wait():
                said = process.stderr.read().strip() or f"status {process.returncode}"
                raise UsageError(f"no journal of {' '.join(self.units)} ({said}): name the log files, or the --unit")
        finally:
            process.kill()
            process.wait()


Source = File | Journal


def files_at(places: Iterable[Path]) -> list[File]:
    """Log files: those named, and all of a directory that is named. UsageError where there is none."""
    found = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.glob("*.log") if path.is_file())
            if not inside:
                raise UsageError(f"{place} has no *.log: name the files")
            found += inside
        elif place.is_file():
            found.append(place)
        else:
            raise UsageError(f"there is no log {place}")
    return [File(path) for path in found]


def newest_run(runs: Path) -> Path | None:
    """The directory of the newest run of `neuron-pd up` below `runs` that has logs."""
    with_logs = [run for run in runs.glob("*") if any(run.glob("*.log"))]
    return max(with_logs, key=lambda run: run.stat().st_mtime, default=None)


def pause() -> None:
    """Between two looks at logs that are followed."""
    time.sleep(POLL_SECONDS)


def _was_replaced(path: Path, descriptor: int, at: int) -> bool:
    """Whether a path now names another file than the open one, or one that was cut short."""
    try:
        now = path.stat()
    except OSError:
        return False
    opened = os.fstat(descriptor)
    return (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino) or now.st_size < at


def _pieces(descriptor: int) -> Iterator[str | None]:
    """Lines of a pipe until its end, and None whenever there is nothing new for a while."""
    part = b""
    while True:
        if not select.select([descriptor], [], [], POLL_SECONDS)[0]:
            yield None
            continue
        if not (data := os.read(descriptor, 1 << 16)):
            return
        *lines, part = (part + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
