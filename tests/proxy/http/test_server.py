"""The server side, spoken to over raw sockets."""

import asyncio
import gc
import json
import socket
import struct
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from neuron_pd.proxy.errors import error_body
from neuron_pd.proxy.http import Client, Limits, Origin, Request, Responder, Server, serve
from tests.proxy.conftest import until

TEXT = [(b"content-type", b"text/plain")]


class Echo:
    """Answers with what it understood, and does what a path says."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.cancelled = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, request: Request, responder: Responder) -> None:
        self.requests.append(request)
        if request.path == "/stream":
            responder.start(200, TEXT)
            for piece in (b"one", b"", b"two"):
                responder.write(piece)
            responder.end()
        elif request.path == "/abort":
            responder.start(200, TEXT)
            responder.write(b"part")
            responder.abort()
        elif request.path == "/wait":
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            responder.send(200, TEXT, b"waited")
        elif request.path == "/empty":
            responder.send(204, [], b"")
        else:
            said = {"method": request.method.decode(), "target": request.target.decode(), "body": len(request.body)}
            responder.send(200, TEXT, json.dumps(said).encode())


@asynccontextmanager
async def echoing(**limits: float) -> AsyncIterator[tuple[Server, Echo]]:
    echo = Echo()
    server = await serve(echo, "127.0.0.1", 0, Limits(**limits), error_body)  # type: ignore[arg-type]
    try:
        yield server, echo
    finally:
        await server.close()


async def exchange(server: Server, *pieces: bytes, finish: bool = True) -> bytes:
    """Send pieces, and read until the server closes (the last request should ask it to)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


CLOSE = b"Host: x\r\nConnection: close\r\n"


async def test_one_request() -> None:
    async with echoing() as (server, _):
        answer = await exchange(server, b"GET /a?b=c HTTP/1.1\r\n" + CLOSE + b"\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 200 OK",
        b"content-type: text/plain",
        b"content-length: %d" % len(body),
        b"connection: close",
    ]
    assert json.loads(body) == {"method": "GET", "target": "/a?b=c", "body": 0}


async def test_byte_by_byte() -> None:
    request = b"POST /x HTTP/1.1\r\n" + CLOSE + b"Content-Length: 3\r\n\r\nabc"
    async with echoing() as (server, echo):
        await exchange(server, *(bytes([byte]) for byte in request))
        assert echo.requests[0].body == b"abc"
        assert echo.requests[0].get(b"content-length") == b"3"


async def test_chunked_body_with_trailers() -> None:
    async with echoing() as (server, echo):
        await exchange(
            server,
            b"POST /x HTTP/1.1\r\n" + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            b"4;ext=1\r\ndefg\r\n0\r\nTrailer: x\r\n\r\n",
        )
        assert echo.requests[0].body == b"abcdefg"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with echoing() as (server, echo):
        asked = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % index for index in range(100))
        answer = await exchange(server, asked + b"GET /last HTTP/1.1\r\n" + CLOSE + b"\r\n")
    assert [request.path for request in echo.requests] == [*(f"/{index}" for index in range(100)), "/last"]
    targets = [json.loads(part.split(b"\r\n\r\n")[1])["target"] for part in answer.split(b"HTTP/1.1 200 OK")[1:]]
    assert targets == [*(f"/{index}" for index in range(100)), "/last"]


async def test_requests_wait_for_the_one_before() -> None:
    async with echoing() as (server, echo):
        task = asyncio.create_task(
            exchange(
                server,
                b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\nGET /b HTTP/1.1\r\n" + CLOSE + b"\r\n",
            )
        )
        await until(lambda: echo.requests)
        await asyncio.sleep(0.05)
        assert [request.path for request in echo.requests] == ["/wait"]
        echo.go_on.set()
        answer = await task
    assert answer.index(b"waited") < answer.index(b"/b")


async def test_keep_alive() -> None:
    async with echoing() as (server, echo):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for index in range(3):
            writer.write(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % index)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"connection: close" not in head
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            assert f"/{index}".encode() in await reader.readexactly(length)
        writer.close()
        assert len(echo.requests) == 3


async def test_streamed_body_is_chunked() -> None:
    async with echoing() as (server, _):
        answer = await exchange(server, b"GET /stream HTTP/1.1\r\n" + CLOSE + b"\r\n")
    assert answer.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


@pytest.mark.parametrize("keep", [b"", b"Connection: keep-alive\r\n"])
async def test_http10(keep: bytes) -> None:
    async with echoing() as (server, _):
        answer = await exchange(server, b"GET /stream HTTP/1.0\r\n" + keep + b"\r\n")
    assert answer.endswith(b"\r\n\r\nonetwo")
    assert b"chunked" not in answer
    assert b"connection: close" in answer


async def test_aborted_stream_has_no_clean_end() -> None:
    async with echoing() as (server, _):
        answer = await exchange(server, b"GET /abort HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.endswith(b"4\r\npart\r\n")


async def test_head_has_headers_and_no_body() -> None:
    async with echoing() as (server, _):
        whole = await exchange(server, b"HEAD /a HTTP/1.1\r\n" + CLOSE + b"\r\n")
        streamed = await exchange(server, b"HEAD /stream HTTP/1.1\r\n" + CLOSE + b"\r\n")
    assert b"content-length: 4" in whole
    assert whole.endswith(b"\r\n\r\n")
    assert streamed.endswith(b"\r\n\r\n")
    assert b"one" not in streamed


async def test_no_content() -> None:
    async with echoing() as (server, _):
        answer = await exchange(server, b"GET /empty HTTP/1.1\r\n" + CLOSE + b"\r\n")
    assert answer == b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"


async def test_expect_100_continue() -> None:
    async with echoing() as (server, echo):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /x HTTP/1.1\r\n" + CLOSE + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()
        assert echo.requests[0].body == b"abc"


async def test_expectation_of_a_body_that_is_too_large_is_refused_before_it_is_sent() -> None:
    async with echoing(max_body=10) as (server, _):
        answer = await exchange(
            server, b"POST /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n"
        )
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 11\r\n\r\n" + b"x" * 11, b"Transfer-Encoding: chunked\r\n\r\nb\r\nxxxxxxxxxxx\r\n"]
)
async def test_too_large_a_body(framing: bytes) -> None:
    async with echoing(max_body=10) as (server, echo):
        answer = await exchange(server, b"POST /x HTTP/1.1\r\nHost: x\r\n" + framing)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == {
        "message": "the request's body is larger than 10 bytes",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
    assert not echo.requests


async def test_a_client_still_sending_its_large_body_reads_the_refusal() -> None:
    async with echoing(max_body=1000) as (server, _):
        size = 8 * 1024 * 1024
        answer = await exchange(
            server, b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
        )
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_large_body() -> None:
    async with echoing() as (server, echo):
        body = bytes(range(256)) * 4096 * 30
        await exchange(server, b"POST /x HTTP/1.1\r\n" + CLOSE + b"Content-Length: %d\r\n\r\n" % len(body), body)
        assert echo.requests[0].body == body


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
async def test_malformed(request_bytes: bytes) -> None:
    async with echoing() as (server, echo):
        answer = await exchange(server, request_bytes)
    assert answer.startswith(b"HTTP/1.1 405 " if request_bytes.startswith(b"CONNECT") else b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert not echo.requests


async def test_what_came_before_a_malformed_request_is_answered_first() -> None:
    async with echoing() as (server, _):
        answer = await exchange(server, b"GET /first HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"HTTP/1.1 400 " in answer


async def test_headers_that_never_end() -> None:
    async with echoing(max_head=2000) as (server, _):
        answer = await exchange(
            server, b"GET / HTTP/1.1\r\nHost: x\r\n", *(b"x-%d: y\r\n" % index for index in range(500))
        )
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_target_that_never_ends() -> None:
    async with echoing(max_head=2000) as (server, _):
        answer = await exchange(server, b"GET /" + b"x" * 3000)
    assert answer.startswith((b"HTTP/1.1 414 ", b"HTTP/1.1 431 "))


async def test_upgrade_is_ignored_and_the_body_read() -> None:
    """As Java's client asks by default; llhttp would take the body for the other protocol."""
    head = (
        b"POST /up HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    )
    async with echoing() as (server, echo):
        await exchange(server, head + b"Content-Length: 3\r\n\r\na", b"bcGET /next HTTP/1.1\r\n" + CLOSE + b"\r\n")
        assert [(request.path, request.body) for request in echo.requests] == [("/up", b"abc"), ("/next", b"")]


async def test_client_that_resets_cancels_its_request() -> None:
    async with echoing() as (server, echo):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        await until(lambda: echo.requests)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await asyncio.wait_for(echo.cancelled.wait(), 5)


async def test_client_that_closes_cancels_work_but_not_a_page() -> None:
    async with echoing() as (server, echo):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
        writer.write_eof()
        assert b"/page" in await asyncio.wait_for(reader.read(), 5)
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        await until(lambda: not len(echo.requests) < 2)
        writer.write_eof()
        await asyncio.wait_for(echo.cancelled.wait(), 5)


async def test_idle_and_slow_connections_are_closed() -> None:
    async with echoing(keep_alive_seconds=0.05, read_seconds=0.05) as (server, _):
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", server.port)
        slow, slow_writer = await asyncio.open_connection("127.0.0.1", server.port)
        slow_writer.write(b"GET / HTTP/1.1\r\nHost:")
        assert await asyncio.wait_for(idle.read(), 5) == b""
        assert await asyncio.wait_for(slow.read(), 5) == b""
        idle_writer.close()
        slow_writer.close()


async def test_draining_lets_a_request_end_and_says_close() -> None:
    async with echoing() as (server, echo):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        idle, _ = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: echo.requests)
        closing = asyncio.create_task(server.close(5))
        assert await asyncio.wait_for(idle.read(), 5) == b""
        late = await exchange(server, b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"/late" in late
        assert b"connection: close" in late
        echo.go_on.set()
        assert b"waited" in await asyncio.wait_for(reader.read(), 5)
        await closing
        assert not server.connections
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)


async def test_draining_ends_in_time() -> None:
    async with echoing() as (server, echo):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: echo.requests)
        await server.close(0.01)
        assert echo.cancelled.is_set()
        assert not server.connections


async def test_a_connection_is_freed_as_it_ends() -> None:
    gc.disable()
    try:
        async with echoing() as (server, _):
            client = Client()
            response = await client.request(Origin("127.0.0.1", server.port), b"GET", b"/", [])
            assert (await response.read()).startswith(b"{")
            ends = [weakref.ref(one) for one in (*client.connections, *server.connections)]
            assert len(ends) == 2
            await client.close()
            await until(lambda: not server.connections)
        await until(lambda: all(end() is None for end in ends))
    finally:
        gc.enable()
