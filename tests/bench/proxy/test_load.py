"""What the load client asks, and which answers it counts."""

import asyncio
import os
from typing import cast

import orjson

from neuron_pd.bench.proxy import replies
from neuron_pd.bench.proxy.load import Ask, again_and_again


def test_every_request_begins_a_conversation_that_no_earlier_run_had() -> None:
    runs = [Ask("id", paced=False), Ask("id", paced=False)]
    bodies = [orjson.loads(ask(client, 1).partition(b"\r\n\r\n")[2]) for ask in runs for client in range(3)]
    assert len({body["conversation_id"] for body in bodies}) == 6
    assert len({body["messages"][1]["content"] for body in bodies}) == 6
    assert "conversation_id" not in orjson.loads(Ask("transcript", paced=False)(0, 1).partition(b"\r\n\r\n")[2])


class SlowAtFirst(asyncio.Protocol):
    """A proxy that is at work on the first request of each client for a second, and answers later ones at once."""

    _asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._asked += 1
        pause = 1.0 if self._asked == 1 else 0.01
        asyncio.get_running_loop().call_later(pause, self._transport.write, replies.streamed(4).whole)


async def test_what_was_done_before_the_window_is_not_counted_in_it() -> None:
    server = await asyncio.get_running_loop().create_server(SlowAtFirst, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        seen = await again_and_again(port, 3, 0.2, Ask("id", paced=False), 4, [os.getpid()])
    assert seen["failed"] == 0
    # Each of the three waits 10 ms for each answer; a window that began too early would have had none.
    assert 3 < seen["requests"] <= 3 * (seen["seconds"] / 0.01 + 1)
    assert 0.2 <= seen["seconds"] < 1.0
    watched, own = seen["cpu"]
    assert 0 <= watched <= seen["seconds"] * 2
    assert 0 < own <= seen["seconds"] * 2
