"""The record of what neuron-pd started on this machine, so that `cleanup` stops that and nothing else.

One small file a process, named after its pid. A process is known again by its pid and the time it was created: a pid
that was given to another process since does not match. An entry that matches no process is stale and is forgotten.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from neuron_pd.launcher.state import state_dir

KINDS: Final = ("proxy", "server")
POLL: Final = 0.05  # seconds
CLOCK_TICK: Final = 0.05  # seconds; the kernel counts a process's start in hundredths of a second


@dataclass(frozen=True, slots=True)
class Started:
    """A process that neuron-pd started. `created` in seconds since the epoch, `kind` one of KINDS, `log` its file."""

    pid: int
    created: float
    kind: str
    name: str
    port: int
    log: str = ""

    def process(self) -> psutil.Process | None:
        """The process, while it is the one that was started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if is_alive(process) and abs(process.create_time() - self.created) < CLOCK_TICK:
                return process
        return None


def remember(pid: int, kind: str, name: str, port: int, log: str = "") -> Started:
    """Record a process that has just been started."""
    started = Started(pid, psutil.Process(pid).create_time(), kind, name, port, log)
    path = _path(pid)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(asdict(started)))
    draft.rename(path)
    return started


@contextmanager
def remembered(kind: str, name: str, port: int) -> Iterator[None]:
    """Let `cleanup` know of this process while the block runs, unless it is part of something that `cleanup` knows.

    Where nothing can be written, as in a read-only container, nothing is remembered.
    """
    family = {process.pid for process in psutil.Process().parents()}
    started: Started | None = None
    with contextlib.suppress(OSError):
        if not any(other.pid in family for other in running()):
            started = remember(os.getpid(), kind, name, port)
    try:
        yield
    finally:
        if started is not None:
            forget(started)


def forget(started: Started) -> None:
    _path(started.pid).unlink(missing_ok=True)


def is_remembered(started: Started) -> bool:
    """False once `stop` was called for it: its end is then on purpose."""
    return _path(started.pid).exists()


def running() -> Iterator[Started]:
    """What was started and still runs. Stale entries are forgotten on the way."""
    for path in sorted(_path(0).parent.glob("*.json")):
        try:
            started = Started(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            path.unlink(missing_ok=True)
            continue
        if started.process() is None:
            forget(started)
        else:
            yield started


def stop(started: Started, grace: float) -> bool:
    """End the process and all that descends from it: SIGTERM, `grace` seconds, SIGKILL. False if it had ended before.

    It is forgotten first, which tells its supervisor that this is on purpose.
    """
    process = started.process()
    forget(started)
    if process is None:
        return False
    family = [process, *_descendants(process)]
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()
    for member in _left_after(family, grace):
        for victim in [*_descendants(member), member]:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
    _left_after(family, grace)
    return True


def is_alive(process: psutil.Process) -> bool:
    """False for a zombie too: it has ended, and waits for its parent to notice."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _left_after(family: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still live after so many seconds; sooner when none does."""
    deadline = time.monotonic() + seconds
    while (left := [member for member in family if is_alive(member)]) and time.monotonic() < deadline:
        time.sleep(POLL)
    return left


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _path(pid: int) -> Path:
    return state_dir() / "processes" / f"{pid}.json"
