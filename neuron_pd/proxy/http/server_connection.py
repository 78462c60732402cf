"""One client's connection: requests read by llhttp, one task for all of them, pipelined requests answered in order."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from neuron_pd.proxy.http.message import BLANK, Header, Request
from neuron_pd.proxy.http.responder import Responder

if TYPE_CHECKING:
    from neuron_pd.proxy.http.server import Server

HIGH_WATER, LOW_WATER = 256 * 1024, 64 * 1024
PIPELINE = 16
JSON = (b"content-type", b"application/json")


class _Refused(Exception):
    """Raised inside parser callbacks: answer `status` and close."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ServerConnection(asyncio.Protocol):
    """Reads requests and runs the handler on them, one at a time."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._limits = server.limits
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Request] = deque()
        self._responder: Responder | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None  # ends with the next request
        self._reading_paused = False
        self._writing_paused = False
        self._refused: _Refused | None = None
        self._half_closed = False
        self.deadline = 0.0
        self._reset()

    def _reset(self) -> None:
        self._target = b""
        self._headers: list[Header] = []
        self._body: list[bytes] = []
        self._size = 0
        self._head_size = 0
        self._upgrade = False
        self._in_body = False

    # ---- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class is no subclass of it
        self._transport.set_write_buffer_limits(HIGH_WATER, LOW_WATER)
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        self.deadline = self._server.now() + self._limits.keep_alive_seconds
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        self._client_left()
        del self._parser  # it holds this connection

    def eof_received(self) -> bool:
        """The client sent all it will. One that still waits for a generated answer is taken to have left.

        A close() and a half-close look the same from here; work for nobody costs more than the rare half-closing
        client. A request without a body (pages, health) is still answered.
        """
        self._half_closed = True
        if self._responder is not None and not self._server.answers_half_closed(self._current):
            self._client_left()
            return False
        if self._responder is None and not self._queue:
            return False
        if self._responder is not None and not self._responder.started:
            self._responder.close_after()
        return not self._encrypted  # TLS has no half-closed connections

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self._responder is not None:
            self._responder.pause_writing()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._responder is not None:
            self._responder.resume_writing()

    def data_received(self, data: bytes) -> None:
        self.deadline = self._server.now() + self._limits.read_seconds
        if self._refused is not None:
            return
        if not self._in_body:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
            if self._head_size > self._limits.max_head and not self._in_body and self._headers:
                raise _Refused(431, "the request's headers are too large")
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, _Refused) else _Refused(400, "the request could not be read"))
        except httptools.HttpParserError as error:
            self._refuse(_Refused(400, f"not a valid HTTP/1.1 request: {error}"))
        except _Refused as error:
            self._refuse(error)

    # ---- parser callbacks

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > self._limits.max_head:
            raise _Refused(414, "the request's target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.rstrip(BLANK)))

    def on_headers_complete(self) -> None:
        self._in_body = True
        self._head_size = 0
        parser = self._parser
        method, version = parser.get_method(), parser.get_http_version()
        http10 = version == "1.0"
        request = self._request = Request(method, self._target, self._headers, http10=http10)
        if not http10 and version != "1.1":
            raise _Refused(400, f"HTTP/{version} is not spoken here")
        if int(request.get(b"content-length") or 0) > self._limits.max_body:
            raise _Refused(413, self._too_large())
        if method == b"CONNECT":
            raise _Refused(405, "this proxy opens no tunnels")
        hosts = request.count(b"host")
        if hosts != 1 and not (hosts == 0 and http10):
            raise _Refused(400, "a request needs exactly one Host header")
        if request.get(b"upgrade") is not None:
            self._upgrade = bool(parser.should_upgrade())
        expectation = request.get(b"expect")
        if expectation is not None and not http10:
            self._continue(expectation)

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limits.max_body:
            raise _Refused(413, self._too_large())
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._upgrade:
            return
        request = self._request
        request.keep_alive = self._parser.should_keep_alive() and not self._server.draining
        request.body = b"".join(self._body)
        self._reset()
        self._accept(request)

    # ---- requests

    def _accept(self, request: Request) -> None:
        if self._responder is None:
            self._start(request)
            return
        self._queue.append(request)
        if len(self._queue) >= PIPELINE and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _start(self, request: Request) -> None:
        self._current = request
        self._responder = Responder(self._transport, request, self._writing_paused)
        if self._task is None:
            self._task = self._server.loop.create_task(self._run())
        else:
            self._go_on()

    async def _run(self) -> None:
        """Answer one request after another, until the client leaves."""
        while (responder := self._responder) is not None:
            try:
                await self._server.handler(self._current, responder)
            except asyncio.CancelledError:
                if not responder.client_left:
                    raise
            finally:
                if not responder.ended:
                    responder.abort()
                self._finished(responder)
            left = responder.client_left
            del responder  # nothing of a request is kept until the next one
            if self._responder is None and not left:
                self._idle = self._server.loop.create_future()
                await self._idle

    def _go_on(self) -> None:
        """End the wait for another request."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.set_result(None)

    def _finished(self, responder: Responder) -> None:
        self._responder = None
        if responder.client_left:
            return
        if responder.closes or (self._server.draining and not self._queue):
            self._transport.close()
        elif self._queue:
            self._start(self._queue.popleft())
            self._resume_reading()
        elif self._refused is not None:
            self._answer_refused(self._refused)
        elif self._half_closed:
            self._transport.close()
        else:
            self.deadline = self._server.now() + self._limits.keep_alive_seconds

    def _resume_reading(self) -> None:
        if self._reading_paused and len(self._queue) < PIPELINE // 2:
            self._reading_paused = False
            self._transport.resume_reading()

    def _client_left(self) -> None:
        if self._responder is not None:
            self._responder.client_left = True
        self._stop()

    def _stop(self) -> None:
        """Break off the request that is being answered, and answer no other."""
        self._queue.clear()
        if self._responder is not None and self._task is not None:
            self._task.cancel()
        self._go_on()

    # ---- what is not served

    def _continue(self, expectation: bytes) -> None:
        if expectation.lower() == b"100-continue" and self._responder is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1, as a server may (RFC 9110, 7.8): llhttp took the body for another protocol's bytes."""
        method, target, headers = self._parser.get_method(), self._target, self._headers
        self._parser = httptools.HttpRequestParser(self)
        kept = [
            header for header in headers if header[0] not in (b"upgrade", b"connection", b"http2-settings", b"expect")
        ]
        lines = [method + b" " + target + b" HTTP/1.1", *(b"%b: %b" % header for header in kept), b"\r\n"]
        self._reset()
        self.data_received(b"\r\n".join(lines) + rest)

    def _too_large(self) -> str:
        return f"the request's body is larger than {self._limits.max_body} bytes"

    def _refuse(self, refused: _Refused) -> None:
        self._refused = refused
        if self._responder is None:
            self._answer_refused(refused)

    def _answer_refused(self, refused: _Refused) -> None:
        request = Request(b"POST", b"/", [])
        Responder(self._transport, request).send(
            refused.status, [JSON], self._server.error_body(refused.status, refused.message)
        )
        self._server.linger(self._transport)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._responder is not None

    def close_if_idle(self) -> None:
        if self._responder is None and self._refused is None:
            self._transport.close()

    def sweep(self, now: float) -> None:
        """Close a connection that was idle, or slow with its request, for too long; drop one that reads no answer."""
        if self._responder is not None or now <= self.deadline:
            return
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def cancel(self) -> None:
        self._stop()
        self._transport.abort()
