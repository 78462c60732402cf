"""Many at once."""

import asyncio

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
