"""An upstream's response: its head, then its body as chunks, in the one way the reader chose."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from neuron_pd.proxy.http.message import Header, UpstreamLost

if TYPE_CHECKING:
    from neuron_pd.proxy.http.client_connection import Connection

HIGH_WATER = 256 * 1024
# A piece of the body, perhaps empty, and whether it is the last one.
Sink = Callable[[bytes, bool], None]


class Response:
    """`head` resolves once `status` and `headers` (names in lower case) are there.

    The body is taken by exactly one of `pipe` (each piece to a function, as it arrives), `read` (all of it) or
    iteration. Until then, and while iterating, at most about `HIGH_WATER` bytes wait in memory: the connection stops
    reading. `close` breaks an incomplete response off, and its connection with it. `received`: a byte of it arrived.
    `get` answers the last of repeated headers.
    """

    status = 0
    received = False
    unfit = False
    _buffered = 0
    _full = False
    _stopped = False
    _sink: Sink | None = None
    _waiter: asyncio.Future[None] | None = None
    _done = False
    _error: Exception | None = None
    get: Callable[[bytes], bytes | None]

    def __init__(self, connection: "Connection", loop: asyncio.AbstractEventLoop) -> None:
        self.head: asyncio.Future[None] = loop.create_future()
        self.headers: list[Header] = []
        self._loop = loop
        self._connection: Connection | None = connection
        self._buffer: list[bytes] = []

    @property
    def complete(self) -> bool:
        return self._done and self._error is None

    @property
    def until_close(self) -> bool:
        """Whether the end of the connection is the end of the body (RFC 9112, 6.3)."""
        encoding = self.get(b"transfer-encoding")
        if encoding is not None:
            return b"chunked" not in encoding.lower()
        return self.get(b"content-length") is None and self.status not in (204, 304)

    async def pipe(self, sink: Sink) -> None:
        """Give every piece to `sink` until the body is complete; UpstreamError when it breaks off.

        `sink` gets what is there already at once, be it nothing, and the rest from the connection's callback, with no
        task switch in between.
        """
        sink(b"".join(self._take()), self.complete)
        self._sink = sink
        if not self._done:
            await self._wait()
        if self._error is not None:
            raise self._error

    async def read(self, limit: int | None = None) -> bytes:
        """The whole body. UpstreamLost when it is longer than `limit` bytes."""
        pieces: list[bytes] = []
        size = 0
        while True:
            piece = b"".join(self._take())
            size += len(piece)
            if limit is not None and size > limit:
                self.close()
                raise UpstreamLost(f"the response is larger than {limit} bytes")
            pieces.append(piece)
            if self._error is not None:
                raise self._error
            if self._done:
                return b"".join(pieces)
            await self._wait()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            if self._buffer:
                yield b"".join(self._take())
            elif self._error is not None:
                raise self._error
            elif self._done:
                return
            else:
                await self._wait()

    def pause(self) -> None:
        """Stop reading: whoever takes the chunks cannot pass them on."""
        self._stopped = True
        self._regulate()

    def resume(self) -> None:
        self._stopped = False
        self._regulate()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not self._done:
            connection.abort()

    # ---- called by the connection

    def begin(self, status: int) -> None:
        self.status = status
        self.get = dict(self.headers).get
        if not self.head.done():
            self.head.set_result(None)

    def feed(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink(data, False)
            return
        self._buffer.append(data)
        self._buffered += len(data)
        if self._buffered > HIGH_WATER and not self._full:
            self._full = True
            self._regulate()
        self._wake()

    def finish(self, data: bytes = b"") -> None:
        """The body is complete with `data`."""
        self._connection = None
        self._done = True
        sink, self._sink = self._sink, None
        if sink is not None:
            sink(data, True)
        elif data:
            self._buffer.append(data)
        self._wake()

    def fail(self, error: Exception) -> None:
        self._connection = self._sink = None
        self._done = True
        self._error = error
        if not self.head.done():
            self.head.set_exception(error)
        self._wake()

    def _take(self) -> list[bytes]:
        taken, self._buffer = self._buffer, []
        self._buffered = 0
        if self._full:
            self._full = False
            self._regulate()
        return taken

    def _regulate(self) -> None:
        if self._connection is None:
            return
        if self._full or self._stopped:
            self._connection.pause()
        else:
            self._connection.resume()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
