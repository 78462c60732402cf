"""One upstream connection: at most one exchange at a time, parsed by llhttp."""

import asyncio
from typing import TYPE_CHECKING, cast

import httptools

from neuron_pd.proxy.http.message import BLANK, Header, StaleConnection, TimedOut, UpstreamLost
from neuron_pd.proxy.http.response import Response

if TYPE_CHECKING:
    from neuron_pd.proxy.http.client import Client, Pool, Timeouts


# uvicorn, which vLLM serves with, closes an idle connection after 5 s: be first, so that no request races its FIN.
IDLE_KEEP_SECONDS = 4.0
FIRST_BYTE = "the first byte"
PAUSE = "a pause within the response"
STALL = "a client that does not read"
WHOLE = "the whole response"


class Connection(asyncio.Protocol):
    """Speaks HTTP/1.1 to one origin. Deadlines are checked from outside (`check`), at a sweep's granularity."""

    def __init__(self, client: "Client", pool: "Pool") -> None:
        self._client = client
        self._now = client.now
        self.pool = pool
        self.reused = False
        self._response: Response | None = None
        self._headers: list[Header] = []
        self._pieces: list[bytes] = []
        # The parser's callback is the list's own method: there may be a piece for every token.
        self.on_body = self._pieces.append
        self._message_done = False
        self._headers_done = False
        self._bodiless = False
        self._paused = False
        self._lost = False

    @property
    def busy(self) -> bool:
        """Whether a response is awaited or under way."""
        return self._response is not None

    @property
    def usable(self) -> bool:
        return not self._lost and not self._transport.is_closing()

    def send(self, method: bytes, head: bytes, body: bytes, timeouts: "Timeouts") -> Response:
        """Write a request; the answer's `head` resolves later."""
        response = self._response = Response(self, self._client.loop)
        self._headers = response.headers
        self._timeouts = timeouts
        self._wait_for(FIRST_BYTE, timeouts.first_byte)
        self._end = self._since + timeouts.total
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
        self._since = self._now()
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.abort()  # nothing was asked: a late error of the peer, or not HTTP
            return
        self._wait_for(PAUSE, self._timeouts.idle)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._message_done:
                self.fail(UpstreamLost(f"{self.pool.origin.url} did not answer in HTTP: {error}"))
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
        del self._parser  # it holds this connection
        response = self._response
        if response is None:
            return
        if exc is None and self._headers_done and response.until_close:
            self._response = None
            response.finish()
        elif self.reused and not response.received:
            self.fail(StaleConnection(f"{self.pool.origin.url} had closed the connection"))
        else:
            self.fail(UpstreamLost(f"{self.pool.origin.url} broke the connection off" + (f": {exc}" if exc else "")))

    # ---- parser callbacks

    def on_message_begin(self) -> None:
        if self._message_done:
            raise ValueError("a response that was not asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.rstrip(BLANK)))

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
        self._headers = []  # trailers are left out
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
            self._wait_for(STALL, self._client.stall_seconds)

    def resume(self) -> None:
        if self._paused and not self._lost:
            self._paused = False
            self._transport.resume_reading()
            self._wait_for(PAUSE, self._timeouts.idle)

    def abort(self) -> None:
        """Close at once, with nobody waiting for the response any more."""
        self._response = None
        self._client.lost(self)
        if not self._lost:
            self._transport.abort()

    def check(self, now: float) -> None:
        """Whether it was idle, or has waited, for too long."""
        if self._response is None:
            if now - self._since > IDLE_KEEP_SECONDS:
                self.abort()
        elif now - self._since > self._seconds:
            self.fail(TimedOut(self._phase, self._seconds))
        elif now > self._end:
            self.fail(TimedOut(WHOLE, self._timeouts.total))

    def _wait_for(self, phase: str, seconds: float) -> None:
        self._phase, self._seconds, self._since = phase, seconds, self._now()

    def _complete(self, response: Response, body: bytes) -> None:
        self._response = None
        if self._paused:
            self.resume()
        self._client.release(self, not response.unfit)
        response.finish(body)

    def fail(self, error: Exception) -> None:
        """Close at once, and give the response in progress `error`."""
        response = self._response
        self.abort()
        if response is not None:
            response.fail(error)
