"""The response to one request, written straight to the client's transport."""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from neuron_pd.proxy.http.message import Header, Request, status_line

BODILESS = frozenset((204, 304))


class Source(Protocol):
    """Whatever produces the body: told to stop when the client reads too slowly."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Responder:
    """Answers one request: `send` at once, or `start`, any number of `write`, `end`.

    Writes after the client left go nowhere. With `follow(source)` the source is paused while more than the transport's
    high-water mark waits for the client; a handler that produces bytes itself awaits `drained()` instead.
    """

    __slots__ = (
        "_chunked",
        "_close",
        "_ended",
        "_head",
        "_transport",
        "_waiter",
        "client_left",
        "paused",
        "source",
        "started",
    )

    def __init__(self, transport: asyncio.Transport, request: Request, paused: bool = False) -> None:
        self._transport = transport
        self._head = request.method == b"HEAD"
        self._chunked = not request.http10
        self._close = not request.keep_alive
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self.started = False
        self.paused = paused
        self.client_left = False
        self.source: Source | None = None

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this response."""
        return self._close

    def close_after(self) -> None:
        """Make this the last response of its connection; only before it starts."""
        self._close = True

    def send(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """The whole response."""
        bodiless = status in BODILESS
        length = [] if bodiless else [b"content-length: %d" % len(body)]
        head = self._head_bytes(status, headers, length)
        self._write(head if bodiless or self._head else head + body)
        self._finish()

    def start(self, status: int, headers: Iterable[Header]) -> None:
        """The head of a response whose length is not known."""
        if status in BODILESS:
            self._chunked = False
            self._head = True
            framing = []
        elif self._chunked:
            framing = [b"transfer-encoding: chunked"]
        else:
            self._close = True
            framing = []
        self._write(self._head_bytes(status, headers, framing))

    def write(self, data: bytes) -> None:
        """A piece of the body; an empty one is nothing."""
        if self._head or not data:
            return
        self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        """The body is complete."""
        if self._chunked and not self._head:
            self._write(b"0\r\n\r\n")
        self._finish()

    def abort(self) -> None:
        """Break the response off so that the client can tell: what was written still goes out, but no clean end."""
        self._close = True
        self._finish()

    def follow(self, source: Source) -> None:
        """Pause and resume `source` as the client reads."""
        self.source = source
        if self.paused:
            source.pause()

    async def drained(self) -> None:
        """Wait until the client has read enough."""
        if self.paused and not self.client_left:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def pause_writing(self) -> None:
        self.paused = True
        if self.source is not None:
            self.source.pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self.source is not None:
            self.source.resume()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _head_bytes(self, status: int, headers: Iterable[Header], framing: list[bytes]) -> bytes:
        self.started = True
        lines = [b"HTTP/1.1 " + status_line(status)]
        lines += [b"%b: %b" % header for header in headers]
        lines += framing
        if self._close:
            lines.append(b"connection: close")
        lines.append(b"\r\n")
        return b"\r\n".join(lines)

    def _write(self, data: bytes) -> None:
        if not self.client_left:
            self._transport.write(data)

    def _finish(self) -> None:
        self._ended = True
        self.source = None
