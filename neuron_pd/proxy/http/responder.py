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

    Each call but `start` is one write to the socket: the head goes out with what follows it.

    Writes after the client left go nowhere. With `follow(source)` the source is paused while more than the transport's
    high-water mark waits for the client.
    """

    __slots__ = (
        "_chunked",
        "_close",
        "_ended",
        "_head",
        "_pending",
        "_transport",
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
        self._pending = b""
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
        """The head of a response whose length is not known; it goes out with the first `write`, even an empty one."""
        if status in BODILESS:
            self._chunked = False
            self._head = True
            framing = []
        elif self._chunked:
            framing = [b"transfer-encoding: chunked"]
        else:
            self._close = True
            framing = []
        self._pending = self._head_bytes(status, headers, framing)

    def write(self, data: bytes, last: bool = False) -> None:
        """A piece of the body, perhaps empty. With the `last` one it is complete."""
        head, self._pending = self._pending, b""
        out = head + self._framed(data, last) if head else self._framed(data, last)
        if out:
            self._write(out)
        if last:
            self._finish()

    def end(self) -> None:
        """The body is complete."""
        self.write(b"", last=True)

    def abort(self) -> None:
        """Break the response off so that the client can tell: what was written still goes out, but no clean end."""
        self.write(b"")
        self._close = True
        self._finish()

    def follow(self, source: Source) -> None:
        """Pause and resume `source` as the client reads."""
        self.source = source
        if self.paused:
            source.pause()

    def pause_writing(self) -> None:
        self.paused = True
        if self.source is not None:
            self.source.pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self.source is not None:
            self.source.resume()

    def _head_bytes(self, status: int, headers: Iterable[Header], framing: list[bytes]) -> bytes:
        self.started = True
        lines = [b"HTTP/1.1 " + status_line(status)]
        lines += [b"%b: %b" % header for header in headers]
        lines += framing
        if self._close:
            lines.append(b"connection: close")
        lines.append(b"\r\n")
        return b"\r\n".join(lines)

    def _framed(self, data: bytes, last: bool) -> bytes:
        if self._head:
            return b""
        if not self._chunked:
            return data
        if not last:
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"

    def _write(self, data: bytes) -> None:
        if not self.client_left:
            self._transport.write(data)

    def _finish(self) -> None:
        self._ended = True
        self.source = None
