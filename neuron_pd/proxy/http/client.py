"""The upstream side: requests over kept-alive connections, answers as a head and then chunks.

There is no cap on connections: what the engines can take is decided by the limits of the proxy and of the engines.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import NamedTuple

from neuron_pd.proxy.http.client_connection import Connection
from neuron_pd.proxy.http.message import ConnectFailed, Header, Origin, StaleConnection, UpstreamLost, header_lines
from neuron_pd.proxy.http.response import Response

SWEEP_SECONDS = 0.1

__all__ = ["Answer", "Client", "Response", "Timeouts"]


class Timeouts(NamedTuple):
    """Of one request, in seconds: to the first byte of the response, between two pieces of it, and for all of it."""

    first_byte: float = 600.0
    idle: float = 300.0
    total: float = float("inf")


class Answer(NamedTuple):
    """A response that was read whole."""

    status: int
    body: bytes


class Pool:
    """The idle connections to one origin, and what every request to it says in the same words."""

    __slots__ = ("base", "host", "idle", "origin")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.base = origin.base.encode()
        self.host = b" HTTP/1.1\r\nhost: %b\r\n" % origin.authority.encode()
        self.idle: list[Connection] = []


class Client:
    """A pool of connections to any number of origins. `stall_seconds` bounds how long a paused response may wait.

    `tls` is how origins behind https are checked.
    """

    def __init__(
        self, connect_seconds: float = 10.0, stall_seconds: float = 300.0, tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.connect_seconds = connect_seconds
        self.stall_seconds = stall_seconds
        self.connections: set[Connection] = set()
        self._pools: dict[Origin, Pool] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def request(
        self,
        origin: Origin,
        method: bytes,
        target: bytes,
        headers: Iterable[Header] | bytes,
        body: bytes = b"",
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - immutable
        retry_stale: bool = True,
    ) -> Response:
        """Send a request and wait for the response's head. `headers`: pairs, or lines made by `header_lines`.

        Raises an UpstreamError. A connection that turns out to be stale is replaced once by a fresh one, unless
        `retry_stale` is false: then StaleConnection, for a request that must not reach the engine twice.
        """
        pool = self._pool(origin)
        head = self._head(pool, method, target, headers, body)
        connection = self._take(pool) or await self._connect(pool)
        while True:
            response = connection.send(method, head, body, timeouts)
            try:
                await response.head
            except StaleConnection:
                if not retry_stale:
                    raise
            except BaseException:
                response.close()
                raise
            else:
                return response
            connection = await self._connect(pool)

    async def ask(
        self,
        origin: Origin,
        method: bytes,
        target: bytes,
        headers: Iterable[Header],
        body: bytes = b"",
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - immutable
        limit: int | None = None,
    ) -> Answer:
        """Send a request and read the whole answer, of `limit` bytes at most. Raises an UpstreamError."""
        response = await self.request(origin, method, target, headers, body, timeouts)
        try:
            return Answer(response.status, await response.read(limit))
        finally:
            response.close()

    async def close(self) -> None:
        """Break off everything."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.fail(UpstreamLost("the proxy is stopping"))
        await asyncio.sleep(0)

    @property
    def active(self) -> int:
        """How many requests are under way."""
        return sum(connection.busy for connection in self.connections)

    def idle_connections(self, origin: Origin) -> int:
        return len(self._pools[origin].idle) if origin in self._pools else 0

    def release(self, connection: Connection, reusable: bool) -> None:
        """A connection's exchange ended."""
        if reusable and not self._closed:
            connection.pool.idle.append(connection)
        else:
            connection.abort()

    def lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if connection in connection.pool.idle:
            connection.pool.idle.remove(connection)

    def _pool(self, origin: Origin) -> Pool:
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = Pool(origin)
        return pool

    @staticmethod
    def _head(pool: Pool, method: bytes, target: bytes, headers: Iterable[Header] | bytes, body: bytes) -> bytes:
        lines = headers if isinstance(headers, bytes) else header_lines(headers)
        length = b"content-length: %d\r\n" % len(body) if body or method in (b"POST", b"PUT", b"PATCH") else b""
        return b"%b %b%b%b%b%b\r\n" % (method, pool.base, target, pool.host, lines, length)

    def _take(self, pool: Pool) -> Connection | None:
        """The connection used last, so that the others grow idle and close."""
        while pool.idle:
            connection = pool.idle.pop()
            if connection.usable:
                connection.reused = True
                return connection
        return None

    async def _connect(self, pool: Pool) -> Connection:
        origin = pool.origin
        try:
            async with asyncio.timeout(self.connect_seconds):
                connection = await self._open(pool)
        except TimeoutError as error:
            raise ConnectFailed(
                f"no connection to {origin.url} within {self.connect_seconds:g} s", refused=False
            ) from error
        except OSError as error:
            raise ConnectFailed(f"cannot connect to {origin.url}: {error.strerror or error}", refused=True) from error
        self.connections.add(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)
        return connection

    async def _open(self, pool: Pool) -> Connection:
        origin = pool.origin

        def made() -> Connection:
            return Connection(self, pool)

        if origin.unix:
            return (await self.loop.create_unix_connection(made, origin.host))[1]
        tls = (self._tls or ssl.create_default_context()) if origin.tls else None
        return (await self.loop.create_connection(made, origin.host, origin.port, ssl=tls))[1]

    def _sweep(self) -> None:
        """One timer for all deadlines: a timer per request and phase would cost more than the rest of it."""
        now = self.now()
        for connection in list(self.connections):
            connection.check(now)
        waiting = self.connections and not self._closed
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep) if waiting else None
