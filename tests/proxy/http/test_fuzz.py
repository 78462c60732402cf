"""The server's reading of requests against h11's, on well-formed, mutated and arbitrarily cut input."""

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import h11
import pytest
import uvloop
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neuron_pd.proxy.errors import error_body
from neuron_pd.proxy.http import Limits, Request, Responder, Server
from neuron_pd.proxy.http.server_connection import ServerConnection


class Wire(asyncio.Transport):
    """A transport whose other end is a list."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Read(NamedTuple):
    """What a parser made of one request."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass
class Outcome:
    requests: list[Read]
    refused: bool


async def _ours(pieces: Iterable[bytes]) -> Outcome:
    seen: list[Read] = []

    async def handler(request: Request, responder: Responder) -> None:
        seen.append(Read(request.method, request.target, tuple(request.headers), request.body))
        responder.send(200, [], b"")

    wire = Wire()
    connection = ServerConnection(Server(handler, Limits(), error_body))
    connection.connection_made(wire)
    for piece in pieces:
        connection.data_received(piece)
        for _ in range(6):
            await asyncio.sleep(0)
    for _ in range(60):
        await asyncio.sleep(0)
    refused = any(b"HTTP/1.1 400" in written or b"HTTP/1.1 405" in written for written in wire.written)
    return Outcome(seen, refused)


def _reference(data: bytes) -> Outcome:
    connection, seen = h11.Connection(h11.SERVER), []
    connection.receive_data(data)
    head, body = None, b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                seen.append(Read(head.method, head.target, tuple(head.headers), body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return Outcome(seen, False)
                connection.start_next_cycle()
            else:
                return Outcome(seen, False)
    except h11.RemoteProtocolError:
        return Outcome(seen, True)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


TOKEN = st.text("abcdefgXYZ-_.!", min_size=1, max_size=8).map(str.encode)
VALUE = st.text("abc xyz,;=/\"'\\()[]{}\t", max_size=12).map(lambda text: text.strip(" \t").encode())
RESERVED = (b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"expect", b"keep-alive")


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A well-formed request."""
    method = draw(st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"]))
    target = b"/" + draw(st.text("abc/?=&%20.~", max_size=12)).encode()
    headers = draw(st.lists(st.tuples(TOKEN, VALUE).filter(lambda pair: pair[0].lower() not in RESERVED), max_size=5))
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: x", *(name + b": " + value for name, value in headers)]
    body = draw(st.binary(max_size=40))
    if draw(st.booleans()):
        return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])
    chunks = [body[start : start + 7] for start in range(0, len(body), 7)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    return b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", coded])


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes in pieces."""
    edges = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=6))})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=80, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=3), st.data())
def test_well_formed_requests_read_the_same(
    loop: asyncio.AbstractEventLoop, sent: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(sent)
    ours = loop.run_until_complete(_ours(data.draw(cut(whole))))
    assert ours == _reference(whole)
    assert len(ours.requests) == len(sent)
    assert not ours.refused


CHARACTERS = [
    b"\r\n",
    b"\n",
    b"\r",
    b":",
    b" ",
    b"\t",
    b"\0",
    b"0",
    b",",
    b"\x80",
    b"+",
    b"0x",
    b"\x0b",
    b";",
    b"HTTP/1.0",
]
LINES = [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Host: y\r\n"]


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A well-formed request followed by another, with something put in, taken out or doubled."""
    data = draw(requests()) + draw(requests())
    for _ in range(draw(st.integers(1, 3))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 3))
        data = data[:at] + draw(st.sampled_from([*CHARACTERS, *LINES, b""])) + data[at + length :]
    return data


@settings(max_examples=150, deadline=None)
@given(spoiled())
@example(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HT")
@example(b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n")
@example(b"GET / HTTP/1.1\r\nHost: x \t\r\nA: b \r\n\r\n")
@example(b"GET / HTTP/1.1\r\nHost: x\r\nEmpty:\r\nB: c\r\n\r\n")
def test_spoiled_requests_never_read_as_other_requests(loop: asyncio.AbstractEventLoop, data: bytes) -> None:
    """Each request that both read is the same for both: smuggling lives on a disagreement on where one ends.

    Either may refuse what the other takes (h11 takes bare line feeds and folded header lines), but then it stops there.
    """
    ours, reference = loop.run_until_complete(_ours([data])), _reference(data)
    for mine, other in zip(ours.requests, reference.requests, strict=False):
        assert (mine.method, mine.target, mine.body) == (other.method, other.target, other.body)
        assert _framing(mine) == _framing(other)
    if len(ours.requests) > len(reference.requests):
        assert reference.refused
    if len(reference.requests) > len(ours.requests):
        assert ours.refused or _waits_for_more(ours, reference)


def _framing(read: Read) -> list[tuple[bytes, bytes]]:
    return sorted(header for header in read.headers if header[0] in (b"content-length", b"transfer-encoding", b"host"))


def _waits_for_more(ours: Outcome, reference: Outcome) -> bool:
    """A later version number or an upgrade makes one of them stop at a message that the other goes past."""
    last = reference.requests[len(ours.requests)]
    return any(name in (b"upgrade", b"connection") for name, _ in last.headers)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.data())
def test_arbitrary_bytes_never_break_it(loop: asyncio.AbstractEventLoop, raw: bytes, data: st.DataObject) -> None:
    loop.run_until_complete(_ours(data.draw(cut(raw))))


@settings(max_examples=80, deadline=None)
@given(spoiled())
def test_forwarded_headers_hold_no_line_ends(loop: asyncio.AbstractEventLoop, data: bytes) -> None:
    """What is passed on cannot become two headers upstream."""
    for read in loop.run_until_complete(_ours([data])).requests:
        assert not any(char in part for header in read.headers for part in header for char in b"\r\n\0")
