"""The file of a run: a JSON line for each request, under a header line that says what was run on what.

Every line is written whole and flushed, so a run that is interrupted leaves all that it measured. Where a cell was
measured to its end, a line says so. Version 1 had requests only.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from neuron_pd.bench.records import Cell, Record, Run
from neuron_pd.errors import UsageError

FORMAT = "neuron-pd bench"
VERSION = 2
READABLE = (1, VERSION)
RECORDS_NAME = "records.jsonl"  # in a run's directory


def check_new(path: Path) -> None:
    """UsageError when there is a file already: records are never written over."""
    if path.exists():
        raise UsageError(f"{path} exists already: name another place with --out, or go on with --resume")


class RecordWriter:
    """Writes a records file line by line; a context manager. `write` is the sink that a sweep wants."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Start the file, and the folder it lies in. UsageError when it exists already or cannot be written."""
        try:
            check_new(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("x", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
        self._line({"format": FORMAT, "version": VERSION, **header})

    @classmethod
    def resume(cls, path: Path, run: Run) -> Self:
        """Go on with the file that `run` was read from, as `run` is now: what it leaves out leaves the file, in one
        step. UsageError when it cannot be written."""
        draft = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            draft.unlink(missing_ok=True)
            header = {name: value for name, value in run.header.items() if name not in ("format", "version")}
            writer = cls(draft, header)
            for record in run.records:
                writer.write(record)
            for cell in run.cells:
                writer.write(cell)
            draft.rename(path)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
        return writer

    def write(self, line: Record | Cell) -> None:
        self._line(line.as_json())

    def _line(self, body: Mapping[str, Any]) -> None:
        # ASCII escapes: a reply may hold characters that some readers take for line ends.
        self._file.write(json.dumps(body, separators=(",", ":")) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def records_path(path: Path) -> Path:
    """The records file that `path` names: itself, or the one in the directory of a run."""
    return path / RECORDS_NAME if path.is_dir() else path


def read_run(path: Path) -> Run:
    """Read a records file, or a run's directory; a last line that was cut short is left out. UsageError when it is not
    one."""
    path = records_path(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    header = _parsed(lines[0]) if lines else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UsageError(f"{path} holds no bench records: name a file that `neuron-pd bench sweep` wrote")
    if header.get("version") not in READABLE:
        raise UsageError(
            f"{path} is version {header.get('version')} of the records; this neuron-pd reads version {VERSION}"
        )
    found = list(_lines(path, lines[1:]))
    records = [line for line in found if isinstance(line, Record)]
    return Run(header, records, [line for line in found if isinstance(line, Cell)])


def _lines(path: Path, lines: list[bytes]) -> Iterable[Record | Cell]:
    for number, line in enumerate(lines, start=2):
        body = _parsed(line)
        try:
            yield Cell.from_json(body["cell"]) if "cell" in body else Record.from_json(body)
        except (TypeError, KeyError):
            if body is None and number == len(lines) + 1:
                return
            raise UsageError(f"{path}, line {number} is not a bench record") from None


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
