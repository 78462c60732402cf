"""The client's reading of responses against h11's, on arbitrarily cut input."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import h11
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_pd.proxy.http import Client, Origin, Response, Timeouts, UpstreamError
from neuron_pd.proxy.http.client_connection import Connection
from tests.proxy.http.test_fuzz import TOKEN, VALUE, Wire, cut

RESERVED = (b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"keep-alive")
ORIGIN = Origin("127.0.0.1", 1)


class UpstreamWire(Wire):
    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed


@dataclass
class Outcome:
    """What was made of a response; `whole`: it ended as its framing says."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False


async def ours(pieces: list[bytes], ends: bool, taken_after: int) -> Outcome:
    """Through a connection; its body is taken once `taken_after` pieces are in."""
    client = Client()
    connection = Connection(client, client._pool(ORIGIN))
    wire = UpstreamWire()
    connection.connection_made(wire)
    response = connection.send(b"GET", b"head", b"", Timeouts(60, 60, 60))
    found, taking = Outcome(), None
    ended: list[bool] = []

    async def take(response: Response) -> None:
        await response.head
        found.status, found.headers = response.status, list(response.headers)

        def keep(data: bytes, last: bool) -> None:
            assert not any(ended)
            found.body += data
            ended.append(last)

        await response.pipe(keep)
        found.whole = True

    for number, piece in enumerate(pieces):
        if number == taken_after:
            taking = asyncio.ensure_future(take(response))
            await asyncio.sleep(0)
        connection.data_received(piece)
        await asyncio.sleep(0)
    taking = taking or asyncio.ensure_future(take(response))
    await asyncio.sleep(0)
    if ends and not connection.eof_received():
        connection.connection_lost(None)
    for _ in range(3):
        await asyncio.sleep(0)
    if not taking.done():
        taking.cancel()
    result = (await asyncio.gather(taking, return_exceptions=True))[0]
    assert result is None or isinstance(result, UpstreamError | asyncio.CancelledError)
    assert found.whole == any(ended)
    await client.close()
    return found


def reference(data: bytes, ends: bool) -> Outcome:
    connection, found = h11.Connection(h11.CLIENT), Outcome()
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    if ends:
        connection.receive_data(b"")
    try:
        while not isinstance(event := connection.next_event(), h11.NEED_DATA.__class__ | h11.ConnectionClosed):
            if isinstance(event, h11.Response):
                found.status, found.headers = event.status_code, list(event.headers)
            elif isinstance(event, h11.Data):
                found.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                found.whole = True
                break
    except h11.RemoteProtocolError:
        pass
    return found


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """A response in one of the three framings; perhaps an interim one before it."""
    headers = draw(st.lists(st.tuples(TOKEN, VALUE).filter(lambda pair: pair[0].lower() not in RESERVED), max_size=4))
    interim = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"])
    )
    status = draw(st.sampled_from([b"200 OK", b"404 Not Found", b"503 Busy", b"204 No Content"]))
    lines = [b"HTTP/1.1 " + status, *(name + b": " + value for name, value in headers)]
    body = b"" if status.startswith(b"204") else draw(st.binary(max_size=60))
    framing = "none" if status.startswith(b"204") else draw(st.sampled_from(["length", "chunked", "close"]))
    if framing == "length":
        return interim + b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])
    if framing == "chunked":
        chunks = [body[start : start + 9] for start in range(0, len(body), 9)]
        extension = draw(st.sampled_from([b"", b";a=b"]))
        coded = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
        trailer = draw(st.sampled_from([b"", b"X-Late: 1\r\n"]))
        return interim + b"\r\n".join(
            [*lines, b"Transfer-Encoding: chunked", b"", coded + b"0\r\n" + trailer + b"\r\n"]
        )
    return interim + b"\r\n".join([*lines, b"", body])


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


@settings(max_examples=120, deadline=None)
@given(responses(), st.booleans(), st.integers(0, 5), st.data())
def test_responses_read_the_same(
    loop: asyncio.AbstractEventLoop, sent: bytes, cut_short: bool, taken_after: int, data: st.DataObject
) -> None:
    if cut_short:
        sent = sent[: data.draw(st.integers(0, len(sent)))]
    ends = data.draw(st.booleans())
    found = loop.run_until_complete(ours(data.draw(cut(sent)), ends, taken_after))
    expected = reference(sent, ends)
    assert (found.status, found.whole) == (expected.status, expected.whole)
    assert found.headers == expected.headers
    assert found.body == expected.body or (not expected.whole and expected.body.startswith(found.body))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=120), st.data())
def test_arbitrary_bytes_never_break_it(loop: asyncio.AbstractEventLoop, raw: bytes, data: st.DataObject) -> None:
    start = data.draw(
        st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
    )
    loop.run_until_complete(ours(data.draw(cut(start + raw)), True, 0))
