"""The upstream side: requests over kept-alive connections, answers as a head and then chunks.

There is no cap on connections: what the engines can take is decided by the limits of the proxy and of the engines.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import httptools

from neuron_pd.proxy.http.client_connection import Connection
from neuron_pd.proxy.http.message import ConnectFailed, Header, Origin, StaleConnection, UpstreamLost
from neuron_pd.proxy.http.response import Response

SWEEP_SECONDS = 0.1
# uvicorn, which vLLM serves with, closes an idle connection after 5 s: be first, so that no request races its FIN.
IDLE_KEEP_SECONDS = 4.0

__all__ = ["Client", "Response", "Timeouts"]


class Timeouts(NamedTuple):
    """Of one request, in seconds: to the first byte of the response, between two pieces of it, and for all of it."""

    first_byte: float = 600.0
    idle: float = 300.0
    total: float = float("inf")


class Client:
    """A pool of connections to any number of origins. `stall_seconds` bounds how long a paused response may wait."""

    def __init__(self, connect_seconds: float = 10.0, stall_seconds: float = 300.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.connect_seconds = connect_seconds
        self.stall_seconds = stall_seconds
        self.active: set[Connection] = set()
        self._idle: dict[Origin, list[Connection]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def request(
        self,
        origin: Origin,
        method: bytes,
        target: bytes,
        headers: Iterable[Header],
        body: bytes = b"",
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - immutable
        retry_stale: bool = True,
    ) -> Response:
        """Send a request and wait for the response's head.

        Raises an UpstreamError. A connection that turns out to be stale is replaced once by a fresh one, unless
        `retry_stale` is false: then StaleConnection, for a request that must not reach the engine twice.
        """
        head = self._head(origin, method, target, headers, len(body))
        connection = self._take(origin)
        if connection is not None:
            try:
                return await self._exchange(connection, method, head, body, timeouts)
            except StaleConnection:
                if not retry_stale:
                    raise
        return await self._exchange(await self._connect(origin), method, head, body, timeouts)

    async def close(self) -> None:
        """Break off everything."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in [*self.active, *(one for pool in self._idle.values() for one in pool)]:
            connection.fail(UpstreamLost("the proxy is stopping"))
        await asyncio.sleep(0)

    def idle_connections(self, origin: Origin) -> int:
        return len(self._idle.get(origin, ()))

    def release(self, connection: Connection, reusable: bool) -> None:
        """A connection's exchange ended."""
        self.active.discard(connection)
        if not reusable or self._closed:
            connection.abort()
            return
        connection.idle_since = self.now()
        self._idle.setdefault(connection.origin, []).append(connection)

    def lost(self, connection: Connection) -> None:
        self.active.discard(connection)
        pool = self._idle.get(connection.origin)
        if pool and connection in pool:
            pool.remove(connection)

    @staticmethod
    def _head(origin: Origin, method: bytes, target: bytes, headers: Iterable[Header], length: int) -> bytes:
        lines = [b"%b %b%b HTTP/1.1\r\nhost: %b" % (method, origin.base.encode(), target, origin.authority.encode())]
        lines += [b"%b: %b" % header for header in headers]
        if length or method in (b"POST", b"PUT", b"PATCH"):
            lines.append(b"content-length: %d" % length)
        lines.append(b"\r\n")
        return b"\r\n".join(lines)

    @staticmethod
    async def _exchange(
        connection: Connection, method: bytes, head: bytes, body: bytes, timeouts: Timeouts
    ) -> Response:
        response = connection.send(method, head, body, timeouts.first_byte, timeouts.idle, timeouts.total)
        try:
            await response.head
        except BaseException:
            response.close()
            raise
        return response

    def _take(self, origin: Origin) -> Connection | None:
        """The connection used last, so that the others grow idle and close."""
        pool = self._idle.get(origin)
        while pool:
            connection = pool.pop()
            if connection.usable:
                self._watch(connection)
                connection.reused = True
                return connection
        return None

    async def _connect(self, origin: Origin) -> Connection:
        try:
            async with asyncio.timeout(self.connect_seconds):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self, origin, httptools.HttpResponseParser), origin.host, origin.port
                )
        except TimeoutError as error:
            raise ConnectFailed(
                f"no connection to {origin.url} within {self.connect_seconds:g} s", refused=False
            ) from error
        except OSError as error:
            raise ConnectFailed(f"cannot connect to {origin.url}: {error.strerror or error}", refused=True) from error
        self._watch(connection)
        return connection

    def _watch(self, connection: Connection) -> None:
        self.active.add(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """One timer for all deadlines: a timer per request and phase would cost more than the rest of it."""
        now = self.now()
        for connection in list(self.active):
            connection.check(now)
        for pool in self._idle.values():
            while pool and now - pool[0].idle_since > IDLE_KEEP_SECONDS:
                pool.pop(0).abort()
        waiting = self.active or any(self._idle.values())
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep) if waiting and not self._closed else None
