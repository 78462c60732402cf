"""The server side: a listener, and the life of its connections."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_pd.proxy.http.message import Request
from neuron_pd.proxy.http.responder import Responder
from neuron_pd.proxy.http.server_connection import ServerConnection

Handler = Callable[[Request, Responder], Awaitable[None]]
ErrorBody = Callable[[int, str], bytes]

BACKLOG = 4096
SWEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection. Sizes in bytes, times in seconds.

    `read_seconds` bounds the gap between two pieces of one request, `keep_alive_seconds` that between two requests.
    """

    max_body: int = 64 * 1024 * 1024
    max_head: int = 64 * 1024
    read_seconds: float = 60.0
    keep_alive_seconds: float = 75.0


class Server:
    """A listening server. `error_body(status, message)` makes the body of what the HTTP layer itself refuses."""

    def __init__(self, handler: Handler, limits: Limits, error_body: ErrorBody) -> None:
        self.handler = handler
        self.limits = limits
        self.error_body = error_body
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.connections: set[ServerConnection] = set()
        self.draining = False
        self.port = 0
        self._changed = asyncio.Event()
        self._listeners: list[asyncio.Server] = []
        self._shared: list[socket.socket] = []
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(
        self,
        host: str,
        port: int,
        sockets: Sequence[socket.socket] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Bind; OSError when the port cannot be had. `sockets` that are bound already take its place."""
        if sockets:
            self._shared = [one.dup() for one in sockets]
            places: list[dict[str, Any]] = [{"sock": one} for one in sockets]
        else:
            places = [{"host": host, "port": port, "family": socket.AF_UNSPEC}]
        for place in places:
            self._listeners.append(
                await self.loop.create_server(
                    lambda: ServerConnection(self), backlog=BACKLOG, ssl=tls, start_serving=False, **place
                )
            )
        self.port = int(self._listeners[0].sockets[0].getsockname()[1])

    async def accept(self) -> None:
        """Let clients in."""
        for listener in self._listeners:
            await listener.start_serving()
        self._sweep()

    async def listen_at(self, path: str) -> None:
        """Accept on a Unix socket, made anew."""
        self._listeners.append(
            await self.loop.create_unix_server(lambda: ServerConnection(self), path, start_serving=False)
        )

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Let requests in flight end for `drain_seconds`, then break them off.

        Meanwhile clients can still connect, so that whoever asks hears that the server drains: each connection is
        closed after one answer. The listeners close with the last request.
        """
        self.draining = True
        for connection in list(self.connections):
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._until(lambda: not any(one.busy for one in self.connections)), drain_seconds)
        for listener in self._listeners:
            listener.close()
        for one in self._shared:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # another process may hold it open
            one.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.abort()
        await self._until(lambda: not self.connections)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def forget(self, connection: ServerConnection) -> None:
        """A connection ended."""
        self.connections.discard(connection)
        self._changed.set()

    def abort(self) -> None:
        """Break every request off."""
        for connection in list(self.connections):
            connection.cancel()

    def answers_half_closed(self, request: Request) -> bool:
        return request.method in (b"GET", b"HEAD", b"OPTIONS")

    def linger(self, transport: asyncio.Transport) -> None:
        """Close for writing, then let a client that is still sending its body read the answer before the reset."""
        if transport.can_write_eof():
            transport.write_eof()
        self.loop.call_later(1.0, transport.close)

    def _sweep(self) -> None:
        now = self.now()
        for connection in list(self.connections):
            connection.sweep(now)
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)


async def serve(
    handler: Handler,
    host: str,
    port: int,
    limits: Limits,
    error_body: ErrorBody,
    sockets: Sequence[socket.socket] = (),
    tls: ssl.SSLContext | None = None,
) -> Server:
    """Start a server on host:port (0 picks a free port), or on `sockets` that are bound; with `tls` over TLS."""
    server = Server(handler, limits, error_body)
    await server.listen(host, port, sockets, tls)
    await server.accept()
    return server
