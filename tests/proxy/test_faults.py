"""Engines that fail, and what the client gets."""

import asyncio
from typing import Any

import aiohttp
import pytest

from neuron_pd.core import control
from neuron_pd.proxy.settings import Phases, Watch
from tests.proxy.conftest import CHAT, Cluster, chat, running, until

LONG = "please tell me everything about the sea and the ships on it"
SECOND = (LONG, "the reply", "go on")


# ---- P


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
async def test_ps_4xx_comes_back_at_once_and_d_is_never_called(status: int) -> None:
    async with running(prefill=2) as cluster:
        for engine in cluster.prefills:
            engine.faults.status = status
        answer = await cluster.post(chat(LONG, stream=True))
        assert (answer.status, answer.raw) == (status, cluster.prefill.faults.status_body)
        assert answer.headers["content-type"] == "application/json"
        assert sum(len(engine.generated) for engine in cluster.prefills) == 1
        assert not cluster.decode.generated


@pytest.mark.parametrize("status", [408, 429, 504])
async def test_status_and_retry_after_are_kept(cluster: Cluster, status: int) -> None:
    cluster.prefill.faults.status = status
    cluster.prefill.faults.status_headers = {"Retry-After": "7"}
    answer = await cluster.post(chat(LONG))
    assert (answer.status, answer.headers["retry-after"]) == (status, "7")
    assert not cluster.decode.generated


@pytest.mark.parametrize("fault", ["status", "reset", "stopped"])
async def test_another_p_takes_over(fault: str) -> None:
    async with running(prefill=2) as cluster:
        first, second = cluster.prefills
        if fault == "stopped":
            await first.stop()
        elif fault == "reset":
            first.faults.reset = True
        else:
            first.faults.status = 500
        answer = await cluster.post(chat(LONG))
        assert answer.status == 200
        assert len(second.generated) == 1
        assert len(cluster.decode.generated) == 1


async def test_the_only_p_fails(cluster: Cluster) -> None:
    cluster.prefill.faults.status = 500
    answer = await cluster.post(chat(LONG))
    assert (answer.status, answer.raw) == (500, cluster.prefill.faults.status_body)
    cluster.prefill.faults.status, cluster.prefill.faults.reset = None, True
    answer = await cluster.post(chat(LONG))
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    error = answer.json["error"]
    assert (error["type"], error["code"]) == ("server_error", "prefill_unavailable")
    assert "127.0.0.1" not in error["message"]
    assert not cluster.decode.generated


async def test_prefill_timeout() -> None:
    async with running(phases=Phases(prefill=0.2)) as cluster:
        cluster.prefill.faults.hang = True
        answer = await cluster.post(chat(LONG))
        assert (answer.status, answer.json["error"]["code"]) == (504, "prefill_timeout")
        await until(lambda: cluster.prefill.cancelled == 1)
        assert not cluster.decode.generated


async def test_a_lease_of_a_failed_prefill_is_given_back_and_the_retry_has_its_own() -> None:
    async with running(prefill=2) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        for engine in cluster.prefills:
            engine.faults.reset, engine.faults.times = True, 1
        cluster.prefills[1].faults.times = 0
        answer = await cluster.post(chat(*SECOND, conversation_id="c"))
        assert answer.turn["path"] == "read_back"
        await cluster.proxy.leases.settle(5)
        offered = [
            request.body["kv_transfer_params"]["remote_request_id"]
            for engine in cluster.prefills
            for request in engine.generated
            if "remote_request_id" in request.body["kv_transfer_params"]
        ]
        assert len(set(offered)) == len(offered) == 2
        assert len(cluster.decode.released) == 1
        assert len(cluster.decode.leases) == 1


# ---- D


async def test_another_d_takes_over_when_the_first_refuses() -> None:
    async with running(decode=2) as cluster:
        await cluster.decodes[0].stop()
        for _ in range(4):
            assert (await cluster.post(chat(LONG))).status == 200
        assert len(cluster.decodes[1].generated) == 4
        assert len(cluster.prefill.generated) == 4


async def test_the_only_d_refuses_then_comes_back(cluster: Cluster) -> None:
    await cluster.decode.stop()
    answer = await cluster.post(chat(LONG))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json["error"]["type"] == "server_error"
    await cluster.proxy.leases.settle(5)
    if cluster.prefill.generated:
        assert len(cluster.prefill.released) == 1
        assert cluster.proxy.metrics.unread.get("decode_not_reached") == 1
    assert (await cluster.post(chat(LONG))).status == 503
    await cluster.decode.restart()
    await until(lambda: cluster.proxy.engines.decode[0].usable)
    assert (await cluster.post(chat(LONG))).status == 200


async def test_breaker_recovers_after_a_burst_of_failures() -> None:
    async with running(watch=Watch(interval=60.0)) as cluster:
        # The first request's connection is a kept-alive one, so it is sent twice.
        cluster.prefill.faults.reset, cluster.prefill.faults.times = True, 4
        statuses = [(await cluster.post(chat(LONG))).status for _ in range(5)]
        assert statuses == [503] * 5
        assert len(cluster.prefill.generated) == 4
        assert cluster.proxy.engines.prefill[0].breaker.state == "open"
        await until(lambda: cluster.proxy.engines.prefill[0].breaker.state == "half_open")
        assert (await cluster.post(chat(LONG))).status == 200
        assert cluster.proxy.engines.prefill[0].breaker.state == "closed"


async def read_into(received: bytearray, response: aiohttp.ClientResponse) -> None:
    async for chunk in response.content.iter_any():
        received += chunk


@pytest.mark.parametrize("mid_line", [False, True])
async def test_d_dies_mid_stream(cluster: Cluster, mid_line: bool) -> None:
    cluster.decode.faults.die_after, cluster.decode.faults.die_mid_line = 2, mid_line
    received = bytearray()
    async with cluster.session.post(cluster.url + CHAT, json=chat(LONG, stream=True)) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_into(received, response)
    assert b"[DONE]" not in received
    assert (b'"code":"decode_lost"' in received) is not mid_line
    assert cluster.proxy.metrics.aborted.get() == 1
    assert cluster.proxy.metrics.failures.get("decode", "broken_off") == 1
    assert len(cluster.proxy.store) == 0
    assert len(cluster.decode.generated) == 1


async def test_d_lost_before_its_first_byte_is_tried_again_from_the_beginning() -> None:
    """Its blocks may have been read: P must prefill once more."""
    async with running(decode=2) as cluster:
        for engine in cluster.decodes:
            engine.faults.reset, engine.faults.times = True, 1
        cluster.decodes[1].faults.times = 0
        answer = await cluster.post(chat(LONG))
        assert answer.status == 200
        assert len(cluster.prefill.generated) == 2
        params = [engine.generated[0].body["kv_transfer_params"]["remote_request_id"] for engine in cluster.decodes]
        assert params[0] != params[1]


async def test_the_only_d_is_lost_before_its_first_byte(cluster: Cluster) -> None:
    cluster.decode.faults.reset = True
    answer = await cluster.post(chat(LONG))
    assert (answer.status, answer.json["error"]["code"]) == (503, "decode_unavailable")
    assert len(cluster.prefill.generated) == 2


async def test_ds_kept_alive_connection_was_stale(cluster: Cluster) -> None:
    """The request may have reached D: it is not sent there twice with the same blocks."""
    cluster.decode.faults.reset, cluster.decode.faults.times = True, 1
    answer = await cluster.post(chat(LONG))
    assert answer.status == 200
    first, second = (request.body["kv_transfer_params"]["remote_request_id"] for request in cluster.decode.generated)
    assert first != second


async def test_ds_errors_are_ds(cluster: Cluster) -> None:
    cluster.decode.faults.status = 400
    answer = await cluster.post(chat(LONG, stream=True))
    assert (answer.status, answer.raw) == (400, cluster.decode.faults.status_body)
    assert answer.headers["content-type"] == "application/json"
    assert len(cluster.proxy.store) == 0


@pytest.mark.parametrize(("phases", "fault"), [(Phases(first_byte=0.2), "hang"), (Phases(idle=0.2), "stall")])
async def test_timeouts_of_d(phases: Phases, fault: str) -> None:
    async with running(phases=phases) as cluster:
        if fault == "hang":
            cluster.decode.faults.hang = True
            answer = await cluster.post(chat(LONG, stream=True))
            assert (answer.status, answer.json["error"]["code"]) == (504, "decode_timeout")
        else:
            cluster.decode.faults.stall_after = 1
            with pytest.raises(aiohttp.ClientPayloadError):
                await cluster.post(chat(LONG, stream=True))
            assert cluster.proxy.metrics.aborted.get() == 1
        await until(lambda: cluster.decode.cancelled == 1)
        assert len(cluster.decode.generated) == 1


async def test_kept_alive_connections_that_engines_closed(cluster: Cluster) -> None:
    """Engines that restarted on the same port: the old connections are noticed or replaced."""
    await cluster.post(chat(LONG))
    for engine in (cluster.prefill, cluster.decode):
        await engine.stop()
        await engine.restart()
    await until(lambda: all(engine.usable for engine in cluster.proxy.engines.every))
    assert (await cluster.post(chat(LONG))).status == 200


# ---- clients that leave


async def start(cluster: Cluster, body: dict[str, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(cluster.post(body))


def at_rest(cluster: Cluster) -> bool:
    proxy = cluster.proxy
    return (
        not proxy.client.active
        and all(engine.requests == 0 and engine.load == 0 for engine in proxy.engines.every)
        and not proxy.server.connections
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_client_leaves_during_prefill(stream: bool) -> None:
    async with running(watch=Watch(interval=60.0)) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        cluster.prefill.faults.hang = True
        task = await start(cluster, chat(*SECOND, conversation_id="c", stream=stream))
        await until(lambda: cluster.prefill.active == 1)
        task.cancel()
        await until(lambda: cluster.prefill.cancelled == 1)
        await until(lambda: len(cluster.decode.released) == 1)
        assert len(cluster.decode.generated) == 1
        assert cluster.proxy.metrics.disconnects.get("prefill") == 1
        await cluster.session.close()
        await until(lambda: at_rest(cluster))


async def test_client_leaves_during_acquire() -> None:
    """The lease that still comes is given back."""
    async with running(watch=Watch(interval=60.0)) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        cluster.decode.acquire_delay = 0.2
        task = await start(cluster, chat(*SECOND, conversation_id="c"))
        await until(lambda: cluster.decode.at(control.ACQUIRE))
        task.cancel()
        await until(lambda: len(cluster.decode.released) == 1)
        assert len(cluster.prefill.generated) == 1
        assert not cluster.decode.leases
        assert cluster.proxy.metrics.disconnects.get("acquire") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_client_leaves_during_decode(stream: bool) -> None:
    async with running(watch=Watch(interval=60.0)) as cluster:
        if stream:
            cluster.decode.faults.stall_after = 1
        else:
            cluster.decode.faults.hang = True
        task = await start(cluster, chat(LONG, stream=stream))
        await until(lambda: cluster.decode.active == 1)
        await asyncio.sleep(0.05)
        task.cancel()
        await until(lambda: cluster.decode.cancelled == 1)
        assert cluster.proxy.metrics.disconnects.get("decode") == 1
        assert len(cluster.proxy.store) == 0
        await cluster.session.close()
        await until(lambda: at_rest(cluster))


async def test_500_clients_that_send_and_reset() -> None:
    async with running(watch=Watch(interval=60.0)) as cluster:
        cluster.prefill.faults.head_delay = 0.2
        body = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
        request = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body)
        for _ in range(500):
            _, writer = await asyncio.open_connection("127.0.0.1", cluster.proxy.port)
            writer.write(request)
            writer.transport.abort()
        await until(lambda: at_rest(cluster))
        await until(lambda: cluster.prefill.active == 0)
        assert not cluster.decode.leases


@pytest.mark.slow
async def test_a_client_that_reads_slowly_holds_little_memory() -> None:
    async with running(watch=Watch(interval=60.0)) as cluster:
        event = b"data: " + b"x" * 100_000 + b"\n\n"
        cluster.decode.events = [event] * 300
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.proxy.port, limit=1024)
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: any(one._writing_paused for one in cluster.proxy.server.connections))
        (connection,) = cluster.proxy.server.connections
        await asyncio.sleep(0.3)
        assert connection._transport.get_write_buffer_size() < 2 * 1024 * 1024
        assert cluster.decode.active == 1
        received = 0
        while received < 300 * len(event):
            received += len(await reader.read(1024 * 1024))
        writer.close()


async def test_a_client_that_never_reads_is_dropped() -> None:
    async with running(phases=Phases(stall=0.3), watch=Watch(interval=60.0)) as cluster:
        cluster.decode.events = [b"data: " + b"x" * 100_000 + b"\n\n"] * 300
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.proxy.port, limit=1024)
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
        await until(lambda: cluster.decode.cancelled == 1)
        assert cluster.proxy.metrics.aborted.get() == 1
        writer.close()
        assert reader is not None
