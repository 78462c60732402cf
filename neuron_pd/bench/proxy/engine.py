"""A fake P and a fake D in one process, made to cost next to nothing: a request is found, not parsed, and its answer
is ready-made bytes.

    python -m neuron_pd.bench.proxy.engine --chunks 64 --pace-ms 20

prints `{"prefill": PORT, "decode": PORT}` and serves until it is ended. D's whole reply goes out in one write, except
where the request's text holds `PACED`: then one chunk every `pace` milliseconds.
"""

import argparse
import asyncio
import re
import sys
from typing import cast

import orjson
import uvloop

from neuron_pd.bench.proxy import replies
from neuron_pd.core import control

PACED = b"at a measured pace"
HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
MISS = (
    b'HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 27\r\n\r\n{"reason":"unknown_handle"}'
)
LENGTH_REQUIRED = b"HTTP/1.1 411 Length Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)


class Answers:
    """What one role answers. `stream` is None on P."""

    def __init__(self, role: str, chunks: int, pace: float) -> None:
        self.generated = replies.prefilled()
        self.stream = replies.streamed(chunks) if role == "decode" else None
        if self.stream is not None:
            self.generated = self.stream.whole
        self.pace = pace
        self.pages = {
            b"/health": HEALTHY,
            control.INFO.encode(): replies.info(role),
            control.ACQUIRE.encode(): MISS,
            control.RELEASE.encode(): replies.json_answer({"released": 0}),
            b"/v1/models": replies.json_answer({"object": "list", "data": [{"id": "fake", "object": "model"}]}),
        }


class Connection(asyncio.Protocol):
    """Answers one request after another."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        while data and (end := request_end(data)) is not None and end <= len(data):
            self._answer(data[:end])
            data = data[end:]
        self._buffer = data

    def _answer(self, request: bytes) -> None:
        answers = self._answers
        if not request.startswith(b"POST /v1/"):
            page = answers.pages.get(request.split(b" ", 2)[1].partition(b"?")[0], replies.NOT_FOUND)
            self._transport.write(page)
            return
        if _CHUNKED.search(request, 0, request.index(HEAD_END)):
            self._transport.write(LENGTH_REQUIRED)
            self._transport.close()
        elif answers.stream is not None and PACED in request:
            self._transport.write(answers.stream.head)
            self._next(answers.stream, 0)
        else:
            self._transport.write(answers.generated)

    def _next(self, stream: replies.Stream, number: int) -> None:
        if number == len(stream.chunks):
            self._transport.write(stream.end)
        elif not self._transport.is_closing():
            self._transport.write(stream.chunks[number])
            asyncio.get_running_loop().call_later(self._answers.pace, self._next, stream, number + 1)


def request_end(data: bytes) -> int | None:
    """Where the request at the start of `data` ends, perhaps beyond it; None while its head is not complete."""
    head = data.find(HEAD_END)
    if head < 0:
        return None
    at = data.find(b"\r\ncontent-length: ", 0, head)
    if at >= 0:
        return head + 4 + int(data[at + 18 : data.index(b"\r", at + 18)])
    length = _LENGTH.search(data, 0, head + 2)
    return head + 4 + (int(length[1]) if length else 0)


async def serve(chunks: int, pace: float) -> None:
    """Print the two ports, then serve for ever."""
    loop = asyncio.get_running_loop()
    ports = {}
    for role in ("prefill", "decode"):
        answers = Answers(role, chunks, pace)
        server = await loop.create_server(lambda answers=answers: Connection(answers), "127.0.0.1", 0, backlog=4096)  # type: ignore[misc]
        ports[role] = server.sockets[0].getsockname()[1]
    sys.stdout.write(orjson.dumps(ports).decode() + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--chunks", type=int, default=64)
    options.add_argument("--pace-ms", type=float, default=20.0)
    given = options.parse_args()
    uvloop.run(serve(given.chunks, given.pace_ms / 1000))


if __name__ == "__main__":
    main()
