"""Several processes on one port, as a person starts them."""

import asyncio
import json
import os
import re
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from neuron_pd.core.control import TOKEN_HEADER
from neuron_pd.errors import UsageError
from neuron_pd.proxy.admission import Bounds
from neuron_pd.proxy.engine_calls import ENGINES
from neuron_pd.proxy.settings import Conversations, Listen, Settings
from neuron_pd.proxy.workers import bound, ended, share
from tests.fakes.engine import FakeEngine
from tests.proxy.conftest import CHAT, chat, until
from tests.proxy.test_cli import free_port, start


@dataclass
class Running:
    """A proxy with workers, and its engines."""

    process: Process
    url: str
    decode: FakeEngine
    log: Path

    @property
    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Over a connection of its own, so that any worker may answer."""
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, json=body, headers=headers) as answer,
        ):
            return answer.status, await answer.read()

    async def counted(self, name: str) -> float:
        _, page = await self.ask("GET", "/metrics")
        return sum(float(value) for value in re.findall(rb"^%b(?:\{.*\})? (.*)$" % name.encode(), page, re.MULTILINE))


@asynccontextmanager
async def workers(*more: str, count: int = 2) -> AsyncIterator[Running]:
    async with FakeEngine("prefill", "secret") as prefill, FakeEngine("decode", "secret") as decode:
        port = free_port()
        engines = ["--prefill", prefill.url, "--decode", decode.url, "--port", str(port)]
        process = await start(*engines, "--workers", str(count), *more)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 120)
        assert line == b"proxy on http://127.0.0.1:%d : 1 prefill, 1 decode, %d workers\n" % (port, count)
        children = psutil.Process(process.pid).children()
        try:
            yield Running(process, f"http://127.0.0.1:{port}", decode, Path())
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await until(lambda: not any(alive(child) for child in children))


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_whoever_answers_answers_for_all() -> None:
    async with workers(count=3) as proxy:
        assert len(proxy.workers) == 3
        for number in range(20):
            status, _ = await proxy.ask("POST", CHAT, chat(f"hello {number}"))
            assert status == 200
        for _ in range(6):
            assert await proxy.counted("neuron_pd_proxy_turns_total") == 20
            assert await proxy.counted("neuron_pd_proxy_turn_seconds_count") == 20
            assert await proxy.counted("neuron_pd_proxy_engine_usable") == 2
        assert (await proxy.ask("GET", "/ready"))[0] == 200


async def test_calls_reach_all_workers_and_those_that_take_their_places() -> None:
    async with workers() as proxy, FakeEngine("decode", "secret") as joined:
        token = {TOKEN_HEADER: "secret"}
        status, _ = await proxy.ask("POST", ENGINES, {"role": "decode", "url": joined.url}, **token)
        assert status == 200

        async def known() -> None:
            for _ in range(6):
                _, listed = await proxy.ask("GET", ENGINES, **token)
                assert joined.url.encode() in listed

        await known()
        before = {worker.pid for worker in proxy.workers}
        for worker in proxy.workers:
            worker.kill()
            gone = worker.pid
            await until(lambda gone=gone: gone not in {one.pid for one in proxy.workers} and len(proxy.workers) == 2)
        assert not before & {worker.pid for worker in proxy.workers}
        await known()


async def test_a_dead_worker_is_replaced_and_nothing_waits_in_vain() -> None:
    async with workers() as proxy:
        for worker in proxy.workers:
            worker.kill()
        answers = await asyncio.gather(*(proxy.ask("POST", CHAT, chat(f"hello {number}")) for number in range(8)))
        assert {status for status, _ in answers} == {200}
        assert len(proxy.workers) == 2


@pytest.mark.parametrize("hurry", [False, True])
async def test_sigterm_drains_all_and_a_second_one_stops(hurry: bool) -> None:
    async with workers("--drain-seconds=30") as proxy, aiohttp.ClientSession() as session:
        proxy.decode.faults.stall_after = 1 if hurry else None
        proxy.decode.faults.head_delay = 0.0 if hurry else 0.5
        asking = [session.post(proxy.url + CHAT, json=chat(f"hello {number}", stream=True)) for number in range(6)]
        answers = asyncio.gather(*asking)
        await until(lambda: proxy.decode.active == 6)
        os.kill(proxy.process.pid, signal.SIGTERM)
        reads = [answer.read() for answer in await answers]
        if hurry:
            await asyncio.sleep(0.2)
            os.kill(proxy.process.pid, signal.SIGTERM)
            results = await asyncio.gather(*reads, return_exceptions=True)
            assert all(isinstance(result, aiohttp.ClientPayloadError) for result in results)
        else:
            assert all(reply.endswith(b"data: [DONE]\n\n") for reply in await asyncio.gather(*reads))
        assert await asyncio.wait_for(proxy.process.wait(), 60) == 0
        with pytest.raises(ConnectionRefusedError), socket.socket() as late:
            late.connect(("127.0.0.1", int(proxy.url.rpartition(":")[2])))


async def test_workers_end_with_their_parent_and_memory_is_said_to_be_apart() -> None:
    async with workers() as proxy:
        children = proxy.workers
        os.kill(proxy.process.pid, signal.SIGKILL)
        await proxy.process.wait()
        await until(lambda: not any(alive(child) for child in children))
        assert proxy.process.stderr is not None
        assert b"--store redis://" in await proxy.process.stderr.read()


async def test_what_a_worker_cannot_do_is_one_line() -> None:
    process = await start(
        "--prefill=http://h:1", "--decode=http://h:2", f"--port={free_port()}", "--workers=2", "--engine-ca=/nowhere"
    )
    out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert (
        err.splitlines()[-1]
        == b"neuron-pd: error: --engine-ca /nowhere holds no certificates: No such file or directory"
    )
    assert b"Traceback" not in err


def test_limits_are_shared_out() -> None:
    whole = Settings(listen=Listen(workers=4), admission=Bounds(concurrency=10, queue=7))
    assert share(whole).admission == Bounds(concurrency=2, queue=2)
    without = Settings(listen=Listen(workers=4), conversations=Conversations())
    assert share(without) is without
    with pytest.raises(UsageError, match="leaves nothing"):
        share(Settings(listen=Listen(workers=4), admission=Bounds(concurrency=3)))


def test_sockets_share_a_port() -> None:
    sockets = [one for of_one in bound("127.0.0.1", 0, 3) for one in of_one]
    assert len({one.getsockname() for one in sockets}) == 1
    for one in sockets:
        one.close()
    with pytest.raises(UsageError, match="choose another"):
        bound("192.0.2.1", 0, 1)


def test_how_a_worker_ended() -> None:
    assert ended(9) == "by signal 9"
    assert ended(256) == "with status 1"


async def test_whichever_worker_is_asked_the_page_shows_what_all_do() -> None:
    turns = 6
    async with workers() as running, AsyncExitStack() as stack:
        running.decode.faults.stall_after = 1
        for number in range(turns):
            session = await stack.enter_async_context(aiohttp.ClientSession())  # a connection of its own
            streaming = await stack.enter_async_context(
                session.post(running.url + CHAT, json=chat(f"turn {number}", stream=True))
            )
            assert await streaming.content.readany()
        for _ in range(4):
            status, answer = await running.ask("GET", "/ui/state")
            state = json.loads(answer)
            assert (status, state["streams"]) == (200, turns)
            assert [engine["in_flight"] for engine in state["engines"]] == [0, turns]
