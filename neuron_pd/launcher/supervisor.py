"""Start a topology, watch it, and end all of it: nothing that was started here outlives the supervisor.

Each child runs under a tether (`tether.py`) in a session of its own. Nothing is restarted: a child that ends without
being asked to ends everything, with an EngineStartError that names it, its exit status, its log and the log's telling
line. A child that `neuron-pd cleanup` stopped is missed by nobody; the others go on.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from neuron_pd.errors import EngineStartError, UsageError
from neuron_pd.launcher import processes
from neuron_pd.launcher.health import status
from neuron_pd.launcher.logs import last_line, telling_line
from neuron_pd.launcher.topology import Child

POLL = 0.25  # seconds between two questions to a child that is not up yet
TETHER = (sys.executable, "-m", "neuron_pd.launcher.tether")


class Runnable(Protocol):
    """What can be supervised; Topology is one."""

    @property
    def run_dir(self) -> Path: ...

    def stages(self) -> Sequence[Sequence[Child]]: ...

    def urls(self) -> Mapping[str, str]: ...

    def token(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a child. `phase` is starting, ready, stopping or stopped; `detail` a line for a person."""

    name: str
    phase: str
    seconds: float
    detail: str = ""


Progress = Callable[[Event], None]


class _Running:
    """One child under its tether."""

    def __init__(self, child: Child, process: asyncio.subprocess.Process) -> None:
        self.child = child
        self.process = process
        self.began = time.monotonic()
        self.is_up = False
        self.entry: processes.Started | None = None
        self.death = asyncio.ensure_future(process.wait())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def on_purpose(self) -> bool:
        return self.entry is not None and not processes.is_remembered(self.entry)

    def remember(self) -> None:
        """Let `neuron-pd cleanup` know of it."""
        child = self.child
        log = str(child.log.absolute())
        self.entry = processes.remember(self.process.pid, child.kind, child.name, child.port, log)

    def error(self) -> EngineStartError:
        child = self.child
        if self.on_purpose:
            return EngineStartError(f"{child.name} was stopped by `neuron-pd cleanup`")
        ended = describe_exit(self.death.result())
        return EngineStartError(f"{child.name} ended ({ended}): {telling_line(child.log)}; its log is {child.log}")

    async def stop(self) -> None:
        """Let go of the tether, and wait until it has ended everything."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        await self.death
        if self.entry is not None:
            processes.forget(self.entry)


@dataclass(frozen=True, slots=True)
class Running:
    """What is up: URLs by child name, logs by child name, and the control token that they share."""

    urls: Mapping[str, str]
    logs: Mapping[str, Path]
    token: str | None
    _supervisor: "Supervisor"

    @property
    def proxy_url(self) -> str:
        return self.urls["proxy"]

    @property
    def prefill_url(self) -> str:
        return self.urls["prefill"]

    @property
    def decode_url(self) -> str:
        return self.urls["decode"]

    async def wait(self) -> None:
        """Until a child ends: EngineStartError. Returns when all of them were stopped by `neuron-pd cleanup`."""
        await self._supervisor.watch()


class Supervisor:
    """`async with Supervisor(topology) as running`: all up inside the block, none left after it, however it ends.

    Raises EngineStartError when a child ends or is not up within `start_timeout` seconds; a cancelled start leaves no
    process either. Children have `stop_grace` seconds to end after SIGTERM.
    """

    def __init__(
        self,
        topology: Runnable,
        progress: Progress | None = None,
        *,
        start_timeout: float = 600.0,
        stop_grace: float = 15.0,
    ) -> None:
        self._topology = topology
        self._progress = progress or (lambda _: None)
        self._start_timeout = start_timeout
        self._stop_grace = stop_grace
        self._running: list[_Running] = []

    async def __aenter__(self) -> Running:
        try:
            self._make_run_dir()
            for stage in self._topology.stages():
                started = [await self._start(child) for child in stage]
                await self._until_up(started)
        except BaseException:
            await self._stop()
            raise
        return Running(
            urls=self._topology.urls(),
            logs={running.child.name: running.child.log for running in self._running},
            token=self._topology.token(),
            _supervisor=self,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def watch(self) -> None:
        """As `Running.wait`."""
        watched = list(self._running)
        while watched:
            await asyncio.wait([running.death for running in watched], return_when=asyncio.FIRST_COMPLETED)
            for running in [running for running in watched if running.death.done()]:
                if not running.on_purpose:
                    raise running.error()
                self._tell(running, "stopped", "by neuron-pd cleanup")
                watched.remove(running)

    def _make_run_dir(self) -> None:
        run_dir = self._topology.run_dir
        try:
            run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(
                f"cannot make {run_dir} for the logs: {error.strerror}; choose another --run-dir"
            ) from error

    async def _start(self, child: Child) -> _Running:
        with child.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *TETHER,
                str(self._stop_grace),
                *child.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **child.environment},
                start_new_session=True,
            )
        running = _Running(child, process)
        self._running.append(running)
        running.remember()
        self._tell(running, "starting")
        return running

    async def _until_up(self, started: list[_Running]) -> None:
        ups = asyncio.gather(*(self._up(running) for running in started))
        ends: list[asyncio.Future[Any]] = [ups, *(running.death for running in self._running)]
        try:
            await asyncio.wait(ends, timeout=self._start_timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ups.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ups
        for running in self._running:
            if running.death.done():
                raise running.error()
        for running in started:
            if not running.is_up:
                raise self._too_late(running.child)

    async def _up(self, running: _Running) -> None:
        while await status(running.child.health_url) != 200:
            self._tell(running, "starting", last_line(running.child.log))
            await asyncio.sleep(POLL)
        running.is_up = True
        self._tell(running, "ready", f"{running.child.health_url} answers")

    def _too_late(self, child: Child) -> EngineStartError:
        return EngineStartError(
            f"{child.name} was not up within {self._start_timeout:g} s: {telling_line(child.log)}; "
            f"its log is {child.log}; allow more with --start-timeout"
        )

    async def _stop(self) -> None:
        """Stop all, newest first, and see it through even when this task is cancelled (again) meanwhile."""
        stopping = asyncio.ensure_future(self._stop_all())
        cancelled = False
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                cancelled = True
        self._running.clear()
        stopping.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _stop_all(self) -> None:
        for running in self._running:
            if not running.death.done():
                self._tell(running, "stopping")
        await asyncio.gather(*(running.stop() for running in reversed(self._running)))
        for running in self._running:
            self._tell(running, "stopped")

    def _tell(self, running: _Running, phase: str, detail: str = "") -> None:
        self._progress(Event(running.child.name, phase, running.seconds, detail))


def describe_exit(status: int) -> str:
    """A tether's exit status in words."""
    number = status - 128 if status > 128 else -status
    if number > 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
    return f"exit status {status}"
