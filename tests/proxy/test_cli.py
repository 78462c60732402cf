"""`neuron-pd proxy` as a process."""

import asyncio
import os
import resource
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from neuron_pd.core.control import TOKEN_ENV, TOKEN_HEADER
from tests.fakes.engine import FakeEngine
from tests.proxy.conftest import CHAT, chat, until


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def start(*arguments: str) -> Process:
    environment = {**os.environ, TOKEN_ENV: "secret"}
    command = [sys.executable, "-m", "neuron_pd", "proxy", *arguments]
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=environment)


@asynccontextmanager
async def proxied(*more: str) -> AsyncIterator[tuple[Process, str, FakeEngine, FakeEngine]]:
    async with FakeEngine("prefill", "secret") as prefill, FakeEngine("decode", "secret") as decode:
        port = free_port()
        hosts = ["--prefiller-host", "127.0.0.1", "--prefiller-port", str(prefill.port)]
        process = await start(*hosts, "--decode", decode.url, "--port", str(port), *more)
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 30)
            assert line == b"proxy on http://127.0.0.1:%d : 1 prefill, 1 decode\n" % port
            yield process, f"http://127.0.0.1:{port}", prefill, decode
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_serves_with_the_token_and_drains_on_sigterm() -> None:
    async with proxied() as (process, url, prefill, decode), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/ready") as response:
            assert (response.status, (await response.json())["ready"]) == (200, True)
        assert prefill.requests[0].headers[TOKEN_HEADER] == "secret"
        decode.faults.head_delay = 0.5
        async with session.post(url + CHAT, json=chat("hello", stream=True)) as response:
            process.send_signal(signal.SIGTERM)
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert process.stderr is not None
        log = await process.stderr.read()
        assert b"Prefill done in " in log
        assert b"secret" not in log


async def test_a_draining_proxy_says_so_and_takes_nothing_new() -> None:
    async with proxied("--drain-seconds=30") as (process, url, _, decode), aiohttp.ClientSession() as session:
        decode.faults.stall_after = 1
        async with session.post(url + CHAT, json=chat("hello", stream=True)) as answer:
            await answer.content.readany()
            process.send_signal(signal.SIGTERM)
            await refuses(f"{url}/ready")
            async with aiohttp.ClientSession() as late:
                async with late.get(f"{url}/ready") as page:
                    assert (page.status, (await page.json())["draining"]) == (503, True)
                async with late.get(f"{url}/health") as page:
                    assert page.status == 200
                async with late.post(url + CHAT, json=chat("late")) as turn:
                    assert (turn.status, turn.headers["retry-after"]) == (503, "1")
                    assert (await turn.json())["error"]["code"] == "draining"
            assert process.returncode is None
        assert await asyncio.wait_for(process.wait(), 20) == 0  # the last client has left
        assert len(decode.generated) == 1


async def refuses(ready: str) -> None:
    """Until the signal has arrived."""
    async with asyncio.timeout(10), aiohttp.ClientSession() as session:
        while True:
            async with session.get(ready) as page:
                if page.status == 503 and (await page.json())["draining"]:
                    return


@pytest.mark.parametrize("hurry", ["--drain-seconds=0.2", "a second signal"])
async def test_drain_ends(hurry: str) -> None:
    more = [hurry] if hurry.startswith("--") else []
    async with proxied(*more) as (process, url, _, decode), aiohttp.ClientSession() as session:
        decode.faults.stall_after = 1
        async with session.post(url + CHAT, json=chat("hello", stream=True)) as response:
            await response.content.readany()
            process.send_signal(signal.SIGINT)
            if not more:
                await asyncio.sleep(0.3)
                assert process.returncode is None
                process.send_signal(signal.SIGINT)
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert await asyncio.wait_for(process.wait(), 20) == 0
        await until(lambda: decode.cancelled == 1)


async def test_as_many_open_files_as_the_user_may_have() -> None:
    async with proxied() as (process, _, _, _):
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard


async def test_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = await start("--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", "--port", str(port))
        out, err = await process.communicate()
    assert process.returncode == 2
    assert out == b""
    assert err.count(b"\n") == 1
    assert str(port).encode() in err
    assert str(os.getpid()).encode() in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--decode", "http://h:1"], b"no prefill engine given"),
        (["--prefill", "http://h:1"], b"no decode engine given"),
        (["--prefill", "http://h:1", "--decode", "http://h:1"], b"must be two engines"),
        (["--prefill", "ftp://h:1", "--decode", "http://h:2"], b"http:// and https:// only"),
    ],
)
async def test_bad_input_is_one_line(arguments: list[str], said: bytes) -> None:
    process = await start(*arguments)
    out, err = await process.communicate()
    assert (process.returncode, out, err.count(b"\n")) == (2, b"", 1)
    assert err.startswith(b"neuron-pd: error: ")
    assert said in err
