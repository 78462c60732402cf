"""What the end of a server's log says."""

import os
import re
from pathlib import Path
from typing import Final

TAIL: Final = 256 * 1024
LINE: Final = 400  # characters
EXCEPTION: Final = re.compile(r"(?:^|\s)((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt)): \S")
PREFIX: Final = re.compile(r"^(\([^)]*pid=\d+\) )?((DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+ \S+ \[[^\]]*\] ?)?")
# vLLM's parent process ends with these, whatever the reason was: the reason stands above them.
CONSEQUENCES: Final = ("Engine core initialization failed", "EngineCore encountered an issue", "leaked shared_memory")


def last_lines(path: Path) -> list[str]:
    """The lines at the end of a log, without vLLM's prefixes; none where there is no log."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return [line for raw in text.splitlines() if (line := PREFIX.sub("", raw).strip())]


def last_line(path: Path) -> str:
    """The last line of a log that says anything, shortened."""
    lines = last_lines(path)
    return lines[-1][:LINE] if lines else ""


def telling_line(path: Path) -> str:
    """The line that most likely says why a server ended: its last exception that is not the consequence of another."""
    lines = [line for line in last_lines(path) if not any(mark in line for mark in CONSEQUENCES)]
    exceptions = [line for line in lines if EXCEPTION.search(line)]
    chosen = exceptions[-1] if exceptions else (lines[-1] if lines else "its log is empty")
    return chosen[:LINE]
