"""The server side: a listener, and the life of its connections."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

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
        self._empty = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int) -> None:
        """Bind and accept; OSError when the port cannot be had."""
        self._listener = await self.loop.create_server(
            lambda: ServerConnection(self), host, port, backlog=BACKLOG, family=socket.AF_UNSPEC
        )
        self.port = int(self._listener.sockets[0].getsockname()[1])
        self._sweep()

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Accept nothing more, let requests in flight end for `drain_seconds`, then break them off."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.close_if_idle()
        if self.connections:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), drain_seconds)
        self.abort()
        if self.connections:
            await self._empty.wait()

    def forget(self, connection: ServerConnection) -> None:
        """A connection ended."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

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


async def serve(handler: Handler, host: str, port: int, limits: Limits, error_body: ErrorBody) -> Server:
    """Start a server on host:port (0 picks a free port)."""
    server = Server(handler, limits, error_body)
    await server.listen(host, port)
    return server
