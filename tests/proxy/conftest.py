"""A running proxy between fake engines, and a client that speaks to it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
import uvloop

from neuron_pd.proxy.app import Proxy
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.settings import Listen, Phases, Pools, Settings, Target, Watch
from tests.fakes.engine import FakeEngine

CHAT = "/v1/chat/completions"


class Cluster:
    """P engines, D engines, the proxy, and a client session without a cap."""

    def __init__(
        self, prefill: list[FakeEngine], decode: list[FakeEngine], proxy: Proxy, session: aiohttp.ClientSession
    ):
        self.prefills, self.decodes, self.proxy, self.session = prefill, decode, proxy, session
        self.prefill, self.decode = prefill[0], decode[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"

    async def post(self, body: Any, path: str = CHAT, **headers: str) -> "Answer":
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(
            self.url + path, data=raw, headers={"content-type": "application/json", **names}
        ) as response:
            return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read())

    async def get(self, path: str) -> "Answer":
        async with self.session.get(self.url + path) as response:
            return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read())

    def origin(self, engine: FakeEngine) -> Origin:
        return Origin("127.0.0.1", engine.port)


class Answer:
    """A whole answer."""

    def __init__(self, status: int, headers: dict[str, str], raw: bytes) -> None:
        self.status, self.headers, self.raw = status, headers, raw

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def events(self) -> list[Any]:
        """The JSON of each event but [DONE]."""
        lines = [line[6:] for line in self.raw.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]

    @property
    def turn(self) -> dict[str, str]:
        """The X-Neuron-PD-Turn header."""
        return dict(part.split("=", 1) for part in self.headers["x-neuron-pd-turn"].split("; "))


def chat(*contents: str, **fields: Any) -> dict[str, Any]:
    """A chat body: user and assistant messages in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    return {"model": "fake", "messages": messages, **fields}


@asynccontextmanager
async def running(
    prefill: int = 1, decode: int = 1, token: str | None = None, phases: Phases | None = None, **settings: Any
) -> AsyncIterator[Cluster]:
    """A cluster of fake engines behind a proxy."""
    async with AsyncExitStack() as stack:
        prefills = [await stack.enter_async_context(FakeEngine("prefill", token)) for _ in range(prefill)]
        decodes = [await stack.enter_async_context(FakeEngine("decode", token)) for _ in range(decode)]
        proxy = await stack.enter_async_context(
            Proxy(make_settings(prefills, decodes, token=token, phases=phases or Phases(), **settings))
        )
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, auto_decompress=False))
        yield Cluster(prefills, decodes, proxy, session)


def make_settings(prefills: list[FakeEngine], decodes: list[FakeEngine], **settings: Any) -> Settings:
    pools = [
        tuple(Target(Origin("127.0.0.1", engine.port), "127.0.0.1") for engine in pool) for pool in (prefills, decodes)
    ]
    quick = {"listen": Listen(port=0, drain=0.0), "watch": Watch(interval=0.2)}
    return Settings(Pools(*pools), **{**quick, **settings})


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something that another task or process brings about."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing here could set an event
            await asyncio.sleep(0.005)


def pytest_asyncio_loop_factories() -> dict[str, Any]:
    """The loop that the proxy runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running() as cluster:
        yield cluster
