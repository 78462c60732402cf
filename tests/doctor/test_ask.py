import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trustme
from aiohttp import web

from neuron_pd.doctor.ask import Answer, CannotReach, ask
from tests.launcher.plans import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def server(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def asked(port: int, scheme: str = "http", **given: object) -> Answer:
    return await asyncio.to_thread(ask, f"{scheme}://127.0.0.1:{port}", "/x", **given)  # type: ignore[arg-type]


async def echo(request: web.Request) -> web.Response:
    body = {"method": request.method, "key": request.headers.get("X-Key"), "body": (await request.read()).decode()}
    return web.json_response(body, status=418)


async def test_any_status_is_an_answer() -> None:
    async with server(echo) as port:
        answer = await asked(port, headers={"X-Key": "k"})
        assert (answer.status, answer.json()) == (418, {"method": "GET", "key": "k", "body": ""})
        assert answer.date is not None
        assert (await asked(port, body={"a": 1})).json()["body"] == '{"a": 1}'


async def test_the_environments_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with server(echo) as port:
        assert (await asked(port)).status == 418


async def test_why_there_is_none() -> None:
    with pytest.raises(CannotReach, match="connection refused"):
        await asked(free_port())
    with pytest.raises(CannotReach, match="does not resolve"):
        await asyncio.to_thread(ask, "http://no-such-host.invalid", "/")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(CannotReach, match=r"no answer within 0\.2 s"):
            await asked(silent.getsockname()[1], seconds=0.2)


async def test_an_answer_that_trickles_in_does_not_hold_it_up() -> None:
    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x")
            await asyncio.sleep(0.05)
        return response

    async with server(trickle) as port:
        with pytest.raises(CannotReach, match=r"no answer within 0\.3 s"):
            await asked(port, seconds=0.3)


async def test_a_certificate_that_is_not_trusted_here() -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
    async with server(echo, tls) as port:
        with pytest.raises(CannotReach, match="its certificate is not trusted here"):
            await asked(port, "https")


async def test_what_is_not_http() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    with pytest.raises(CannotReach):
        await asked(listening.sockets[0].getsockname()[1])
    listening.close()
