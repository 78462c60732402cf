"""The upstream side, against servers that are scripts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from neuron_pd.proxy.http import (
    Client,
    ConnectFailed,
    Origin,
    Response,
    StaleConnection,
    TimedOut,
    Timeouts,
    UpstreamError,
    UpstreamLost,
)
from tests.proxy.conftest import until

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
QUICK, PATIENT = Timeouts(0.2, 0.2), Timeouts(5, 5)


class Peer:
    """A server that runs `script` on each connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.connections = 0
        self.closed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed.set()
        finally:
            writer.close()


@asynccontextmanager
async def talking(script: Script, **client: float) -> AsyncIterator[tuple[Client, Origin, Peer]]:
    peer = Peer(script)
    server = await asyncio.start_server(peer._serve, "127.0.0.1", 0)
    origin = Origin("127.0.0.1", server.sockets[0].getsockname()[1])
    upstream = Client(**client)
    try:
        yield upstream, origin, peer
    finally:
        await upstream.close()
        server.close()


def answering(*answers: bytes) -> Script:
    """One answer after each request of a connection, then wait for the peer to close."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        await reader.readexactly(1)

    return script


async def get(client: Client, origin: Origin, timeouts: Timeouts = PATIENT, retry: bool = True) -> Response:
    return await client.request(origin, b"GET", b"/x", [(b"a", b"b")], timeouts=timeouts, retry_stale=retry)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def test_keep_alive_reuses_a_connection() -> None:
    async with talking(answering(OK, OK, OK)) as (client, origin, peer):
        for _ in range(3):
            assert await (await get(client, origin)).read() == b"ok"
        assert peer.connections == 1
        assert client.idle_connections(origin) == 1


async def test_a_whole_answer_and_none_that_is_longer_than_the_limit() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nlonger"
    async with talking(answering(OK, endless)) as (client, origin, _):
        assert await client.ask(origin, b"GET", b"/", [], timeouts=PATIENT, limit=2) == (200, b"ok")
        assert client.idle_connections(origin) == 1
        with pytest.raises(UpstreamLost, match="larger than 5 bytes"):
            await client.ask(origin, b"GET", b"/", [], timeouts=PATIENT, limit=5)
        assert (client.active, client.idle_connections(origin), client.connections) == (0, 0, set())


async def test_what_is_sent() -> None:
    seen: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"body"))
        writer.write(OK)

    async with talking(script) as (client, origin, _):
        based = Origin(origin.host, origin.port, "/base")
        await client.request(based, b"POST", b"/x?y", [(b"a", b"b")], b"body")
    host = b"127.0.0.1:%d" % origin.port
    assert seen == [b"POST /base/x?y HTTP/1.1\r\nhost: " + host + b"\r\na: b\r\ncontent-length: 4\r\n\r\nbody"]


async def test_head_and_chunks_as_they_come() -> None:
    go_on = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 201 Created\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await go_on.wait()
        writer.write(b"3\r\ntwo\r\n0\r\nTrailer: x\r\n\r\n")
        await reader.readexactly(1)

    async with talking(script) as (client, origin, _):
        response = await get(client, origin)
        assert (response.status, response.get(b"x-a")) == (201, b"b")
        chunks = aiter(response)
        assert await anext(chunks) == b"one"
        go_on.set()
        assert [chunk async for chunk in chunks] == [b"two"]
        assert response.complete
        assert client.idle_connections(origin) == 1


async def test_body_until_close() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with talking(script) as (client, origin, _):
        assert await (await get(client, origin)).read() == b"all of it"
        assert client.idle_connections(origin) == 0


@pytest.mark.parametrize(
    "cut_short",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
    ],
)
async def test_body_cut_short(cut_short: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(cut_short)

    async with talking(script) as (client, origin, _):
        with pytest.raises(UpstreamLost):
            await (await get(client, origin)).read()


@pytest.mark.parametrize("nonsense", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", b""])
async def test_not_http(nonsense: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(nonsense)

    async with talking(script) as (client, origin, _):
        with pytest.raises(UpstreamLost):
            await get(client, origin)


async def test_interim_responses_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with talking(answering(interim + OK, OK)) as (client, origin, peer):
        response = await get(client, origin)
        assert (response.status, response.get(b"link"), await response.read()) == (200, None, b"ok")
        assert await (await get(client, origin)).read() == b"ok"
        assert peer.connections == 1


@pytest.mark.parametrize("empty", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
async def test_empty_bodies(empty: bytes) -> None:
    async with talking(answering(empty, OK)) as (client, origin, peer):
        assert await (await get(client, origin)).read() == b""
        assert await (await get(client, origin)).read() == b"ok"
        assert peer.connections == 1


async def test_head_request_ends_with_the_head() -> None:
    async with talking(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")) as (client, origin, _):
        response = await client.request(origin, b"HEAD", b"/", [], timeouts=QUICK)
        assert await response.read() == b""
        assert response.get(b"content-length") == b"10"


async def test_connection_close_is_obeyed() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    async with talking(answering(closing)) as (client, origin, peer):
        for _ in range(2):
            assert await (await get(client, origin)).read() == b"ok"
        assert peer.connections == 2


async def stale(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers once, then closes on the next request without a word."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK)
    await reader.readuntil(b"\r\n\r\n")


async def test_stale_connection_is_replaced_once() -> None:
    async with talking(stale) as (client, origin, peer):
        for _ in range(3):
            assert await (await get(client, origin)).read() == b"ok"
        assert peer.connections == 3


async def test_stale_connection_is_reported_where_a_request_must_not_be_repeated() -> None:
    async with talking(stale) as (client, origin, peer):
        await (await get(client, origin)).read()
        with pytest.raises(StaleConnection):
            await get(client, origin, retry=False)
        assert peer.connections == 1


async def test_a_fresh_connection_that_breaks_is_not_retried() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with talking(script) as (client, origin, peer):
        with pytest.raises(UpstreamLost):
            await get(client, origin)
        assert peer.connections == 1


async def test_a_reused_connection_that_began_to_answer_is_not_retried() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")

    async with talking(script) as (client, origin, peer):
        await (await get(client, origin)).read()
        response = await get(client, origin)
        with pytest.raises(UpstreamLost):
            await response.read()
        assert peer.connections == 1


async def test_idle_connection_that_the_peer_closes_leaves_the_pool() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)

    async with talking(script) as (client, origin, _):
        await (await get(client, origin)).read()
        await until(lambda: not client.idle_connections(origin))


async def test_refused() -> None:
    async with talking(answering()) as (client, _, _):
        with pytest.raises(ConnectFailed) as failed:
            await get(client, Origin("127.0.0.1", 1))
        assert failed.value.refused


async def test_first_byte_and_idle_deadlines() -> None:
    async with talking(answering(b"")) as (client, origin, peer):
        with pytest.raises(TimedOut) as slow:
            await get(client, origin, QUICK)
        assert slow.value.phase == "the first byte"
        await asyncio.wait_for(peer.closed.wait(), 5)
    async with talking(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")) as (client, origin, _):
        response = await get(client, origin, QUICK)
        with pytest.raises(TimedOut) as idle:
            await response.read()
        assert idle.value.phase == "a pause within the response"


async def test_total_deadline() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with talking(script) as (client, origin, _):
        response = await get(client, origin, Timeouts(5, 5, 0.3))
        with pytest.raises(TimedOut) as whole:
            await response.read()
        assert whole.value.phase == "the whole response"


async def test_closing_a_response_closes_its_connection() -> None:
    async with talking(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")) as (client, origin, peer):
        response = await get(client, origin)
        response.close()
        await asyncio.wait_for(peer.closed.wait(), 5)
        assert not client.active


async def test_cancelling_a_request_closes_its_connection() -> None:
    async with talking(answering(b"")) as (client, origin, peer):
        task = asyncio.create_task(get(client, origin))
        await until(lambda: peer.connections)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(peer.closed.wait(), 5)
        assert not client.active


async def test_an_unread_response_holds_little() -> None:
    """Backpressure: the peer cannot write on while nobody takes the chunks."""
    written = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 268435456\r\n\r\n")
        while written < 268435456:
            writer.write(b"x" * 65536)
            await writer.drain()
            written += 65536

    async with talking(script) as (client, origin, _):
        response = await get(client, origin)
        before = -1
        while before != written:
            before = written
            await asyncio.sleep(0.1)
        assert written < 32 * 1024 * 1024
        assert response._buffered < 1024 * 1024
        size = 0
        async for chunk in response:
            size += len(chunk)
        assert size == 268435456


async def test_paused_response_times_out_as_a_client_that_does_not_read() -> None:
    async with talking(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"), stall_seconds=0.1) as parts:
        client, origin, _ = parts
        response = await get(client, origin, Timeouts(5, 5))
        response.pause()
        with pytest.raises(TimedOut) as stalled:
            await response.read()
        assert stalled.value.phase == "a client that does not read"


async def test_read_limit() -> None:
    async with talking(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabcdefghi")) as (client, origin, _):
        with pytest.raises(UpstreamError):
            await (await get(client, origin)).read(limit=4)


async def test_unasked_bytes_close_an_idle_connection() -> None:
    async with talking(answering(OK + b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n", OK)) as (
        client,
        origin,
        peer,
    ):
        assert await (await get(client, origin)).read() == b"ok"
        await asyncio.sleep(0.02)
        assert client.idle_connections(origin) == 0
        assert await (await get(client, origin)).read() == b"ok"
        assert peer.connections == 2


@pytest.mark.slow
async def test_no_cap_on_connections() -> None:
    waiting = 0
    everyone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        await reader.readuntil(b"\r\n\r\n")
        waiting += 1
        if waiting == 300:
            everyone.set()
        await everyone.wait()
        writer.write(OK)
        await reader.readexactly(1)

    async with talking(script) as (client, origin, _):
        responses = await asyncio.gather(*(get(client, origin, Timeouts(30, 30)) for _ in range(300)))
        assert [await response.read() for response in responses] == [b"ok"] * 300
