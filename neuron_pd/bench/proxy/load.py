"""The client: as light as the fake engines, so that the proxy between them is what is measured.

    python -m neuron_pd.bench.proxy.load PORT --clients 32 --seconds 3 --identity id

prints one JSON object. Two shapes of load: `--seconds S`, each client asks again as soon as it is answered; `--once`,
all clients connect at the same moment and ask once, at a measured pace. `--watch PID`: what that process and its
children take of the processor meanwhile is measured too.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from secrets import token_hex
from typing import Any, cast

import orjson
import uvloop

from neuron_pd.bench.proxy.cpu import cpu_seconds
from neuron_pd.bench.proxy.engine import PACED
from neuron_pd.bench.proxy.replies import LAST_CHUNK

DONE = b"data: [DONE]"
WARM_SECONDS = 1.0
IDENTITIES = ("id", "transcript")
GIVE_UP_SECONDS = 60.0


class Ask:
    """Requests, about 1,200 bytes long: each begins a conversation that no proxy has seen, in earlier runs neither."""

    def __init__(self, identity: str, paced: bool) -> None:
        self._run = token_hex(4)
        self._named = identity == "id"
        self._system = "You are a careful assistant. " * 12 + (PACED.decode() if paced else "")

    def __call__(self, client: int, number: int) -> bytes:
        name = f"{self._run}-{client}-{number}"
        question = f"Question {name}: " + "what of the sea and the ships on it? " * 8
        body: dict[str, Any] = {
            "model": "fake",
            "stream": True,
            "max_tokens": 64,
            "messages": [{"role": "system", "content": self._system}, {"role": "user", "content": question}],
        }
        if self._named:
            body["conversation_id"] = f"conversation-{name}"
        raw = orjson.dumps(body)
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\n"
            b"Authorization: Bearer sk-bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        ) % (len(raw), raw)


class Tally:
    """What all clients saw. Times in seconds."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.answered = self.failed = 0
        self.first_bytes: list[float] = []
        self.stopping = False

    def judge(self, reply: bytes) -> None:
        """Count a whole reply; a good one has status 200, every chunk, and an end."""
        if reply.startswith(b"HTTP/1.1 200") and reply.count(b'"content":" word') == self.chunks:
            self.answered += 1
        else:
            self.failed += 1


class Client(asyncio.Protocol):
    """One connection. `answered` resolves with its first answer, `asked` when it has nothing more to ask."""

    def __init__(self, tally: Tally, ask: Ask, index: int, once: bool, began: float) -> None:
        self._tally, self._ask, self._index, self._once, self._began = tally, ask, index, once, began
        self._number = 0
        self._pieces: list[bytes] = []
        self._seen_first = False
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        if self._once and not self._seen_first and b"data: " in data:
            self._seen_first = True
            self._tally.first_bytes.append(time.perf_counter() - self._began)
        if not data.endswith(LAST_CHUNK):
            self._pieces.append(data)
            return
        pieces, self._pieces = self._pieces, []
        self._judge(b"".join((*pieces, data)) if pieces else data)
        if self._once or self._tally.stopping:
            self._end()
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_result(None)
        if not self.asked.done():
            self._tally.failed += 1
            self.asked.set_result(None)

    def _judge(self, reply: bytes) -> None:
        """The first reply of a client is read closely, the others for their end."""
        tally = self._tally
        if self._number == 1:
            self.answered.set_result(None)
            tally.judge(reply)
        elif DONE in reply[-64:]:
            tally.answered += 1
        else:
            tally.failed += 1

    def _send(self) -> None:
        self._number += 1
        self._transport.write(self._ask(self._index, self._number))

    def _end(self) -> None:
        if not self.asked.done():
            self.asked.set_result(None)
        self._transport.close()


async def again_and_again(
    port: int, clients: int, seconds: float, ask: Ask, chunks: int, watched: Sequence[int]
) -> dict[str, Any]:
    """Closed loop: requests answered in a window of `seconds`, after a warm-up.

    A slow proxy works on the requests of all clients side by side. So that a window neither takes credit for what was
    done before it, nor loses what is nearly done at its end, the clients come one after another, and it begins when
    each of them has been answered.
    """
    tally = Tally(chunks)
    connected = []
    for index in range(clients):
        connected.append(await _connect(port, Client(tally, ask, index, False, 0.0)))
        await asyncio.sleep(WARM_SECONDS / clients)
    await _all(client.answered for client in connected)
    began, used, answered = time.perf_counter(), _used(watched), tally.answered
    await asyncio.sleep(seconds)
    answered = tally.answered - answered
    elapsed = time.perf_counter() - began
    cpu = _since(used, watched)
    tally.stopping = True
    await _all(client.asked for client in connected)
    return {"requests": answered, "failed": tally.failed, "seconds": elapsed, "cpu": cpu}


async def all_at_once(port: int, clients: int, ask: Ask, chunks: int, watched: Sequence[int]) -> dict[str, Any]:
    """`clients` that connect at the same moment, one request each; seconds to each one's first chunk."""
    tally = Tally(chunks)
    used = _used(watched)
    began = time.perf_counter()  # after that: looking for a process's children takes milliseconds
    every = [Client(tally, ask, index, True, began) for index in range(clients)]
    await asyncio.gather(*(_connect(port, client) for client in every))
    await _all(client.asked for client in every)
    return {
        "requests": tally.answered,
        "failed": tally.failed,
        "seconds": time.perf_counter() - began,
        "cpu": _since(used, watched),
        "first_bytes": sorted(tally.first_bytes),
    }


def _used(processes: Sequence[int]) -> list[float]:
    """Processor time of each, in seconds; of this one last."""
    return [*map(cpu_seconds, processes), time.process_time()]


def _since(before: Sequence[float], processes: Sequence[int]) -> list[float]:
    return [now - then for now, then in zip(_used(processes), before, strict=True)]


async def _connect(port: int, client: Client) -> Client:
    await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port)
    return client


async def _all(steps: Iterable[asyncio.Future[None]]) -> None:
    await asyncio.wait(list(steps), timeout=GIVE_UP_SECONDS)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("port", type=int)
    options.add_argument("--clients", type=int, default=32)
    options.add_argument("--chunks", type=int, default=64)
    options.add_argument("--identity", choices=IDENTITIES, default="id")
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--once", action="store_true")
    options.add_argument("--watch", type=int, action="append", default=[])
    given = options.parse_args()
    ask = Ask(given.identity, paced=given.once)
    if given.once:
        run = all_at_once(given.port, given.clients, ask, given.chunks, given.watch)
    else:
        run = again_and_again(given.port, given.clients, given.seconds, ask, given.chunks, given.watch)
    result = uvloop.run(run)
    sys.stdout.write(orjson.dumps(result).decode() + "\n")


if __name__ == "__main__":
    main()
