"""Many at once."""

import asyncio

import orjson

from tests.proxy.conftest import chat, running, until


async def test_300_streams_reach_d_together_and_health_answers() -> None:
    async with running() as cluster:
        cluster.decode.faults.stall_after = 1
        tasks = [asyncio.create_task(cluster.post(chat("hello", stream=True))) for _ in range(300)]
        await until(lambda: cluster.decode.active == 300)
        assert (await cluster.get("/health")).status == 200
        assert cluster.proxy.engines.decode[0].requests == 300
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_1000_streams_at_once_and_pages_still_answer() -> None:
    async with running() as cluster:
        cluster.decode.faults.stall_after = 1
        streams = [await asyncio.open_connection("127.0.0.1", cluster.proxy.port) for _ in range(1000)]
        body = orjson.dumps(chat("hello", stream=True))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        for _, writer in streams:
            writer.write(head + body)
        for reader, _ in streams:
            await reader.readuntil(b"the")
        assert cluster.decode.active == 1000
        for page in ("/health", "/ready", "/metrics"):
            assert (await cluster.get(page)).status == 200
        for _, writer in streams:
            writer.transport.abort()
        await until(lambda: cluster.decode.active == 0)
        await until(lambda: not cluster.proxy.client.active)
        assert not cluster.proxy.engines.decode[0].requests


async def test_p_is_chosen_by_tokens_in_flight() -> None:
    async with running(prefill=2) as cluster:
        cluster.prefills[0].faults.head_delay = cluster.prefills[1].faults.head_delay = 0.3
        long = asyncio.create_task(cluster.post(chat("x" * 400_000)))
        await until(lambda: any(engine.active for engine in cluster.prefills))
        busy, free = sorted(cluster.prefills, key=lambda engine: -engine.active)
        await asyncio.gather(*(cluster.post(chat(f"short {number}")) for number in range(5)))
        await long
        assert (len(busy.generated), len(free.generated)) == (1, 5)


async def test_d_is_chosen_by_requests_in_flight() -> None:
    async with running(decode=2) as cluster:
        for engine in cluster.decodes:
            engine.faults.head_delay = 0.2
        await asyncio.gather(*(cluster.post(chat(f"hello {number}")) for number in range(10)))
        assert [len(engine.generated) for engine in cluster.decodes] == [5, 5]
