"""The proxies under test as processes, each kept on a core."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from neuron_pd.bench.proxy import peers
from neuron_pd.bench.proxy.peers import Say, Unavailable

OURS, EXAMPLE, ROUTER = "neuron-pd", "example", "vllm-router"
PEERS = (EXAMPLE, ROUTER)
START_SECONDS = 60.0
STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the fake engines listen."""

    prefill: int
    decode: int


@dataclass(frozen=True, slots=True)
class Contender:
    """How a proxy is started on `port`."""

    name: str
    port: int
    argv: tuple[str, ...]


def contender(name: str, engines: Ports, say: Say) -> Contender:
    """One contender in front of the engines, with its own defaults. Unavailable where it cannot be had."""
    port = free_port()
    prefill, decode = (f"http://127.0.0.1:{number}" for number in (engines.prefill, engines.decode))
    if name == OURS:
        command = [sys.executable, "-m", "neuron_pd", "proxy", "--prefill", prefill, "--decode", decode]
    elif name == EXAMPLE:
        command = [sys.executable, str(peers.example(say)), "--prefiller-host", "127.0.0.1", "--prefiller-port"]
        command += [str(engines.prefill), "--decoder-host", "127.0.0.1", "--decoder-port", str(engines.decode)]
    else:
        command = [str(peers.router(say)), "--vllm-pd-disaggregation", "--prefill", prefill, "--decode", decode]
        command += ["--kv-connector", "nixl", "--policy", "round_robin", "--prometheus-port", str(free_port())]
    return Contender(name, port, (*command, "--host", "127.0.0.1", "--port", str(port)))


class Pinned:
    """A child process that may use one core only; `with` starts and ends it, and whatever it has started.

    What it writes to stdout is read here when it `talks`, else kept with its stderr.
    """

    def __init__(self, argv: Sequence[str], core: int, talks: bool = False) -> None:
        self._argv, self._core, self._talks = argv, core, talks

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            self._argv,
            stdout=subprocess.PIPE if self._talks else self._log,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {self._core}),  # noqa: PLW1509 - no other thread runs here
        )
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(STOP_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()

    @property
    def last_words(self) -> str:
        """The end of what it wrote to stderr, as one line."""
        self._log.seek(0)
        lines = self._log.read()[-2000:].decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def read_line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def listening(self, port: int) -> None:
        """Wait until it accepts connections on `port`. Unavailable when it ends first, or takes too long."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise Unavailable(f"it ended with status {self.process.returncode}: {self.last_words[:200]}")
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                return
            except OSError:
                time.sleep(0.1)
        raise Unavailable(f"it does not listen after {START_SECONDS:.0f} s: {self.last_words[:200]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
