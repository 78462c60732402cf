"""Several processes that serve one port, and the parent that keeps them alive.

The parent binds a socket for each worker (SO_REUSEPORT: the kernel spreads connections over them) and keeps all of them
open, so connections that wait for a worker which died are accepted by the one that takes its place. It forks workers
before any event loop exists, and passes signals on: SIGTERM or SIGINT lets all of them drain, a second one stops them.
"""

import logging
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from neuron_pd.errors import NeuronPDError, UsageError
from neuron_pd.proxy.settings import Settings
from neuron_pd.proxy.siblings import Seat

log = logging.getLogger("neuron_pd.proxy")

DRAIN = signal.SIGUSR1  # parent to worker; whoever signals the whole process group reaches the workers only through it
SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SHORT_LIFE_SECONDS = 5.0
PAUSE_SECONDS = 1.0

Serve = Callable[["Work"], None]
"""Serves until the worker is told to end; runs in the worker's process."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker is given: its share of the limits, its sockets, its seat, and two pipes.

    One line is written to `report` once it serves. `lifeline` ends when the parent does.
    """

    settings: Settings
    sockets: Sequence[socket.socket]
    seat: Seat
    report: int
    lifeline: int


@dataclass(slots=True)
class Child:
    pid: int
    began: float


class Workers:
    """`run` starts them all and returns once they have ended."""

    def __init__(self, settings: Settings, folder: Path, serve: Serve) -> None:
        self._settings, self._folder, self._serve = share(settings), folder, serve
        self._count = settings.listen.workers
        self._sockets = bound(settings.listen.host, settings.listen.port, self._count)
        self._children: dict[int, Child] = {}
        self._stopping = False

    def run(self, announce: Callable[[str], None]) -> None:
        """`announce` gets the line of the first worker once all of them serve. UsageError when one cannot."""
        self._lifeline, self._held = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            told = [self._begin(index) for index in range(self._count)]
            lines = [self._hear(listening) for listening in told]
            announce(f"{lines[0]}, {self._count} workers")
            self._watch()
        finally:
            self._signal(signal.SIGKILL)
            while self._children:
                self._reap()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(self._held)

    def _begin(self, index: int) -> int:
        """Fork a worker: where its line is to be heard."""
        listening, report = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self._held)
            os.close(listening)
            seat = Seat(index, self._count, self._folder)
            self._become(Work(self._settings, self._sockets[index], seat, report, self._lifeline))
        self._children[index] = Child(pid, time.monotonic())
        os.close(report)
        return listening

    def _hear(self, listening: int) -> str:
        """Wait for a worker's line. NeuronPDError when it ends instead."""
        with open(listening, "rb") as told:
            line = told.readline()
        said = orjson.loads(line) if line else {"error": "a worker ended before it served"}
        if "error" in said:
            raise UsageError(said["error"]) if said.get("usage") else NeuronPDError(said["error"])
        return str(said["line"])

    def _become(self, work: Work) -> None:
        """In the new process: serve, then end without what belongs to the parent."""
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self._serve(work)
            status = 0
        except NeuronPDError as error:
            said = {"error": str(error), "usage": isinstance(error, UsageError)}
            os.write(work.report, orjson.dumps(said) + b"\n")
        except BaseException:
            traceback.print_exc()
        finally:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _watch(self) -> None:
        while self._children:
            number = signal.sigwait(SIGNALS)
            if number == signal.SIGCHLD:
                self._reap(os.WNOHANG)
            elif number == signal.SIGHUP:
                self._signal(number)
            else:
                self._stopping = True
                self._signal(DRAIN)

    def _signal(self, number: int) -> None:
        for child in self._children.values():
            os.kill(child.pid, number)

    def _reap(self, options: int = 0) -> None:
        """Take note of workers that ended; unless all are to end, others take their places."""
        for index, child in list(self._children.items()):
            pid, status = os.waitpid(child.pid, options)
            if pid == 0:
                continue
            del self._children[index]
            if not self._stopping and options:
                log.warning("worker %d ended (%s): another takes its place", index, ended(status))
                self._replace(index, child)

    def _replace(self, index: int, child: Child) -> None:
        if time.monotonic() - child.began < SHORT_LIFE_SECONDS:
            time.sleep(PAUSE_SECONDS)
        try:
            self._hear(self._begin(index))
        except NeuronPDError as error:
            # Its end is the next SIGCHLD, and the next attempt.
            log.error("worker %d cannot serve: %s", index, error)


def run_workers(settings: Settings, announce: Callable[[str], None], serve: Serve) -> None:
    """Serve with `settings.listen.workers` processes until SIGTERM or SIGINT."""
    if settings.conversations.store == "memory":
        log.warning(
            "each of %d workers remembers its own conversations: a turn that reaches another worker than the last one "
            "is computed anew. Add --store redis://HOST to share them",
            settings.listen.workers,
        )
    with tempfile.TemporaryDirectory(prefix="neuron-pd-") as folder:
        Workers(settings, Path(folder), serve).run(announce)


def share(settings: Settings) -> Settings:
    """One worker's part: limits are for the proxy as a whole."""
    workers, bounds = settings.listen.workers, settings.admission
    if bounds.concurrency is None:
        return settings
    if bounds.concurrency < workers:
        raise UsageError(f"--max-concurrency {bounds.concurrency} leaves nothing to some of {workers} --workers")
    part = replace(bounds, concurrency=bounds.concurrency // workers, queue=-(-bounds.queue // workers))
    return replace(settings, admission=part)


def bound(host: str, port: int, workers: int) -> list[list[socket.socket]]:
    """For each worker a socket for each of the host's addresses, all on one port (0: a free one)."""
    try:
        places = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        every = []
        for _ in range(workers):
            every.append([_bound(family, (*address[:1], port, *address[2:])) for family, _, _, _, address in places])
            port = every[0][0].getsockname()[1]
    except OSError as error:
        said = error.strerror or error
        raise UsageError(f"cannot listen on {host}:{port} ({said}): choose another --host or --port") from error
    return every


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.bind(address)
    one.setblocking(False)
    return one


def ended(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        return f"by signal {os.WTERMSIG(status)}"
    return f"with status {os.waitstatus_to_exitcode(status)}"
