"""The calls that change the pools, and turns that run meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine
from tests.proxy.conftest import CHAT, Answer, Cluster, chat, running, until

TOKEN = "cluster-token"
ENGINES = "/neuron_pd/v1/engines"


@pytest.fixture
async def guarded() -> AsyncIterator[Cluster]:
    async with running(token=TOKEN) as cluster:
        yield cluster


async def call(
    cluster: Cluster, method: str, body: Any = None, path: str = ENGINES, token: str | None = TOKEN
) -> Answer:
    headers = {"x-neuron-pd-token": token} if token else {}
    async with cluster.session.request(method, cluster.url + path, json=body, headers=headers) as response:
        return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read())


async def test_an_engine_joins_serves_and_leaves(guarded: Cluster) -> None:
    cluster = guarded
    async with FakeEngine("decode", TOKEN) as second:
        answer = await call(cluster, "POST", {"role": "decode", "url": second.url, "kv_host": "10.1.0.7"})
        assert (answer.status, answer.json["url"], answer.json["role"]) == (200, second.url, "decode")
        engine = cluster.proxy.engines.decode[1]
        assert engine.kv_host == "10.1.0.7"
        await until(lambda: engine.usable)
        for turn in range(4):
            assert (await cluster.post(chat(f"hello {turn}"))).status == 200
        assert len(second.generated) == 2
        answer = await call(cluster, "DELETE", {"url": second.url})
        assert (answer.status, answer.json["leaving"], answer.json["usable"]) == (200, True, False)
        for turn in range(4):
            assert (await cluster.post(chat(f"hello {turn}"))).status == 200
        assert len(second.generated) == 2
        listed = (await call(cluster, "GET")).json["engines"]
        assert [(one["url"], one["leaving"]) for one in listed] == [
            (cluster.prefill.url, False),
            (cluster.decode.url, False),
            (second.url, True),
        ]


async def test_a_drained_engine_ends_its_streams_and_gets_no_more(guarded: Cluster) -> None:
    cluster = guarded
    cluster.decode.faults.stall_after = 1
    async with cluster.session.post(cluster.url + CHAT, json=chat("hello", stream=True)) as streaming:
        assert await streaming.content.readany()
        answer = await call(cluster, "POST", {"url": cluster.decode.url}, f"{ENGINES}/drain")
        assert (answer.status, answer.json["draining"], answer.json["in_flight"]) == (200, True, 1)
        refused = await cluster.post(chat("hello"))
        assert (refused.status, refused.json["error"]["code"]) == (503, "no_engine_ready")
        assert refused.headers["retry-after"] == "1"
        assert (await cluster.get("/ready")).status == 503
        assert not streaming.content.at_eof()
    cluster.decode.faults.stall_after = None
    answer = await call(cluster, "POST", {"url": cluster.decode.url}, f"{ENGINES}/undrain")
    assert answer.json["draining"] is False
    assert (await cluster.post(chat("hello"))).status == 200


async def test_an_engine_named_by_an_option_can_be_removed_and_comes_back(guarded: Cluster) -> None:
    cluster = guarded
    url = cluster.prefill.url
    assert (await call(cluster, "DELETE", {"url": url})).status == 200
    assert (await cluster.post(chat("hello"))).status == 503
    assert (await call(cluster, "DELETE", {"url": url})).status == 404
    assert (await call(cluster, "POST", {"role": "prefill", "url": url})).status == 200
    await until(lambda: cluster.proxy.engines.prefill[0].usable)
    assert (await cluster.post(chat("hello"))).status == 200


@pytest.mark.parametrize(
    ("method", "body", "path", "status", "said"),
    [
        ("POST", {"role": "router", "url": "http://127.0.0.1:1"}, ENGINES, 400, "prefill or decode"),
        ("POST", {"role": "decode"}, ENGINES, 400, "url must be text"),
        ("POST", {"role": "decode", "url": "ftp://x"}, ENGINES, 400, "http:// and https:// only"),
        ("POST", {"role": "decode", "url": "http://x:1", "kv_host": "a/b"}, ENGINES, 400, "kv_host must be a host"),
        ("POST", ["decode"], ENGINES, 400, "JSON object"),
        ("DELETE", {"url": "http://127.0.0.1:1"}, ENGINES, 404, "is in no pool"),
        ("PUT", {}, ENGINES, 405, "GET, POST, DELETE"),
        ("GET", None, f"{ENGINES}/drain", 405, "takes POST"),
    ],
)
async def test_what_is_not_understood(
    guarded: Cluster, method: str, body: Any, path: str, status: int, said: str
) -> None:
    answer = await call(guarded, method, body, path)
    assert (answer.status, said in answer.json["error"]["message"]) == (status, True)
    assert len(guarded.proxy.engines.every) == 2


async def test_one_address_has_one_role(guarded: Cluster) -> None:
    answer = await call(guarded, "POST", {"role": "prefill", "url": guarded.decode.url})
    assert (answer.status, "is a decode engine" in answer.json["error"]["message"]) == (409, True)


async def test_the_guard(guarded: Cluster) -> None:
    for token in (None, "wrong", TOKEN + "x"):
        answer = await call(guarded, "DELETE", {"url": guarded.decode.url}, token=token)
        assert (answer.status, answer.json["error"]["code"]) == (401, "wrong_token")
    assert all(not engine.left for engine in guarded.proxy.engines.every)


async def test_without_a_control_token_there_are_no_calls(cluster: Cluster) -> None:
    answer = await call(cluster, "GET", token="anything")
    assert answer.status == 403
    assert "NEURON_PD_CONTROL_TOKEN_FILE" in answer.json["error"]["message"]


async def test_joining_and_leaving_under_load(guarded: Cluster) -> None:
    """Turns run without a break while engines come and go around them."""
    cluster = guarded
    statuses: list[int] = []
    done = asyncio.Event()

    async def client(name: str) -> None:
        while not done.is_set():
            statuses.append((await cluster.post(chat(f"{name} {len(statuses)}", stream=True))).status)

    clients = [asyncio.create_task(client(f"client {index}")) for index in range(6)]
    async with FakeEngine("decode", TOKEN) as second:
        for _ in range(5):
            await call(cluster, "POST", {"role": "decode", "url": second.url})
            await asyncio.sleep(0.05)
            await call(cluster, "DELETE", {"url": second.url})
            await asyncio.sleep(0.02)
        done.set()
        await asyncio.gather(*clients)
    assert set(statuses) == {200}
    assert second.generated
    assert all(engine.requests == engine.load == 0 for engine in cluster.proxy.engines.every)
