"""One upstream connection: at most one exchange at a time, parsed by llhttp."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import httptools

from neuron_pd.proxy.http.message import Origin, StaleConnection, TimedOut, UpstreamLost
from neuron_pd.proxy.http.response import Response

if TYPE_CHECKING:
    from neuron_pd.proxy.http.client import Client


class Connection(asyncio.Protocol):
    """Speaks HTTP/1.1 to one origin. Deadlines are checked from outside (`check`), at a sweep's granularity."""

    def __init__(self, client: "Client", origin: Origin, parser: Callable[[Any], Any]) -> None:
        self._client = client
        self._now = client.now
        self._new_parser = parser
        self.origin = origin
        self.reused = False
        self.idle_since = 0.0
        self._response: Response | None = None
        self._pieces: list[bytes] = []
        # The parser's callback is the list's own method: there may be a piece for every token.
        self.on_body = self._pieces.append
        self._message_done = False
        self._headers_done = False
        self._bodiless = False
        self._paused = False
        self._idle_seconds = 0.0
        self._deadline = self._total = float("inf")
        self._phase, self._seconds = "", 0.0
        self._lost = False

    @property
    def usable(self) -> bool:
        return not self._lost and not self._transport.is_closing()

    def send(self, method: bytes, head: bytes, body: bytes, first_byte: float, idle: float, total: float) -> Response:
        """Write a request; the answer's `head` resolves later."""
        response = self._response = Response(self, self._client.loop)
        now = self._now()
        self._idle_seconds = idle
        self._total = now + total
        self._set_deadline("the first byte", first_byte, now)
        self._bodiless = method == b"HEAD"
        self._headers_done = self._message_done = False
        if len(body) > 65536:
            self._transport.write(head)
            self._transport.write(body)
        else:
            self._transport.write(head + body)
        return response

    # ---- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class is no subclass of it
        self._parser = self._new_parser(self)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.abort()  # nothing was asked: a late error of the peer, or not HTTP
            return
        now = self._now()
        self._set_deadline("a pause within the response", self._idle_seconds, now)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._message_done:
                self.fail(UpstreamLost(f"{self.origin.url} did not answer in HTTP: {error}"))
                return
            response.unfit = True
        pieces = self._pieces
        body = b"" if self._bodiless else b"".join(pieces)
        pieces.clear()
        if self._message_done:
            self._complete(response, body)
        elif body:
            response.feed(body)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._client.lost(self)
        response = self._response
        if response is None:
            return
        if exc is None and self._headers_done and response.until_close:
            self._response = None
            response.finish()
        elif self.reused and not response.received:
            self.fail(StaleConnection(f"{self.origin.url} had closed the connection"))
        else:
            self.fail(UpstreamLost(f"{self.origin.url} broke the connection off" + (f": {exc}" if exc else "")))

    # ---- parser callbacks

    def on_message_begin(self) -> None:
        if self._message_done:
            raise ValueError("a response that was not asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headers_done or self._response is None:
            return  # trailers
        self._response.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        response = self._response
        assert response is not None
        response.received = True
        status = self._parser.get_status_code()
        if status < 200:
            response.headers.clear()
            if status == 101:
                raise ValueError("the peer switched protocols unasked")
            return
        self._headers_done = True
        response.begin(status)
        if self._bodiless:
            response.unfit = self._message_done = True

    def on_message_complete(self) -> None:
        if self._headers_done:
            self._message_done = True
            unsent = self._transport.get_write_buffer_size()
            if self._response is not None and (unsent or not self._parser.should_keep_alive()):
                self._response.unfit = True

    # ---- what a response may ask of its connection

    def pause(self) -> None:
        if not self._paused and not self._lost:
            self._paused = True
            self._transport.pause_reading()
            self._set_deadline("a client that does not read", self._client.stall_seconds, self._now())

    def resume(self) -> None:
        if self._paused and not self._lost:
            self._paused = False
            self._transport.resume_reading()
            self._set_deadline("a pause within the response", self._idle_seconds, self._now())

    def abort(self) -> None:
        """Close at once, with nobody waiting for the response any more."""
        self._response = None
        if not self._lost:
            self._transport.abort()

    def check(self, now: float) -> None:
        if now > self._deadline:
            self.fail(TimedOut(self._phase, self._seconds))

    def _set_deadline(self, phase: str, seconds: float, now: float) -> None:
        self._phase, self._seconds = phase, seconds
        self._deadline = now + seconds
        if self._deadline > self._total:
            self._deadline = self._total
            self._phase = "the whole response"

    def _complete(self, response: Response, body: bytes) -> None:
        self._response = None
        self.resume()
        self._client.release(self, not response.unfit)
        response.finish(body)

    def fail(self, error: Exception) -> None:
        """Close at once, and give the response in progress `error`."""
        response, self._response = self._response, None
        self._client.lost(self)
        if not self._lost:
            self._transport.abort()
        if response is not None:
            response.fail(error)
