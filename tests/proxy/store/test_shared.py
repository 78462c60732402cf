"""The store in Redis: what stands there, and what happens when it is slow, gone, or not what it should be."""

import asyncio
import ssl
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trustme
from redis.asyncio import Redis

from neuron_pd.errors import UsageError
from neuron_pd.proxy.app import Proxy
from neuron_pd.proxy.settings import Conversations
from neuron_pd.proxy.store import Known, Offer, RedisStore, open_store
from neuron_pd.proxy.store.shared import PASSWORD_ENV, check_url, without_password
from tests.fakes.redis import RedisServer
from tests.proxy.conftest import Cluster, chat, make_settings, running, until

LONG = "please tell me everything about the sea and the ships on it"
SECOND = (LONG, "the reply", "go on")


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """A Redis that a test may stop."""
    with RedisServer(tmp_path) as server:
        yield server


def store_at(url: str, failures: list[tuple[str, str]], timeout: float = 5.0, **more: Any) -> RedisStore:
    return RedisStore(url, 60.0, timeout, lambda operation, kind: failures.append((operation, kind)), **more)


async def test_several_proxies_share_conversations(own: RedisServer) -> None:
    """The second turn comes to another proxy before the same engines."""
    conversations = Conversations(store=own.url, store_timeout=5.0)
    async with running(conversations=conversations) as cluster:
        settings = make_settings([cluster.prefill], [cluster.decode], conversations=conversations)
        async with Proxy(settings) as other:
            await cluster.post(chat(LONG))
            cluster.proxy, first = other, cluster.proxy
            assert (await cluster.post(chat(*SECOND))).turn["path"] == "read_back"
            cluster.proxy = first


@pytest.mark.parametrize("named", [True, False])
async def test_reuse_through_redis(own: RedisServer, named: bool) -> None:
    fields = {"conversation_id": "my-conversation"} if named else {}
    async with running(conversations=Conversations(store=own.url, store_timeout=5.0)) as cluster:
        await cluster.post(chat(LONG, **fields), authorization="Bearer top-secret")
        second = await cluster.post(chat(*SECOND, **fields), authorization="Bearer top-secret")
        assert second.turn["path"] == "read_back"
        await assert_nothing_of_a_client(own, cluster)


async def assert_nothing_of_a_client(own: RedisServer, cluster: Cluster) -> None:
    async with Redis.from_url(own.url) as client:
        names = [name async for name in client.scan_iter()]
        content = b" ".join([*names, *[await client.get(name) or b"" for name in names]])
        assert all([0 < await client.pttl(name) <= 3_600_000 for name in names])
    assert names
    for word in (b"sea", b"reply", b"my-conversation", b"top-secret", b"fake"):
        assert word not in content
    assert cluster.decode.url.encode() in content


async def test_a_store_that_is_down_costs_reuse_only_and_comes_back(own: RedisServer) -> None:
    async with running(conversations=Conversations(store=own.url, store_timeout=5.0)) as cluster:
        failures, breaker = cluster.proxy.metrics.store_failures, cluster.proxy.store.breaker
        await cluster.post(chat(LONG, conversation_id="c"))
        own.stop()
        for _ in range(3):
            answer = await cluster.post(chat(*SECOND, conversation_id="c"))
            assert (answer.status, answer.turn["path"]) == (200, "recompute")
        assert sum(failures.values.values()) >= 4
        assert failures.get("first", "ConnectionError") + failures.get("put", "ConnectionError") >= 3
        assert breaker.state != "closed"
        own.start()
        await until(lambda: breaker.state == "half_open")
        await cluster.post(chat(LONG, conversation_id="c"))
        assert breaker.state == "closed"
        assert (await cluster.post(chat(*SECOND, conversation_id="c"))).turn["path"] == "read_back"


async def test_a_store_that_does_not_answer_is_not_waited_for(own: RedisServer) -> None:
    async with running(conversations=Conversations(store=own.url, store_timeout=1.0)) as cluster:
        await cluster.post(chat(LONG, conversation_id="c"))
        own.pause()
        try:
            answer = await cluster.post(chat(*SECOND, conversation_id="c"))
            assert (answer.status, answer.turn["path"]) == (200, "recompute")
            assert cluster.proxy.metrics.store_failures.get("first", "TimeoutError") >= 1
        finally:
            own.resume()


async def test_tls(own: RedisServer, tmp_path: Path) -> None:
    """The server's certificate is checked; without the authority that signed it nothing is said to it."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))

    async def to_redis(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", own.port)
        await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer), return_exceptions=True)

    failures: list[tuple[str, str]] = []
    known = Known("http://d", uuid4().hex)
    async with await asyncio.start_server(to_redis, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        trusting = store_at(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}/authority.pem", failures)
        await trusting.put([b"k"], known)
        assert await trusting.first([b"k"]) == known
        assert not failures
        doubting = store_at(f"rediss://127.0.0.1:{port}/0", failures)
        assert await doubting.first([b"k"]) is None
        assert failures == [("first", "ConnectionError")]
        await trusting.close()
        await doubting.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_every_call_answers_when_there_is_no_redis() -> None:
    failures: list[tuple[str, str]] = []
    store = store_at("redis://127.0.0.1:1/0", failures, clock=lambda: 0.0)
    known = Known("http://d", uuid4().hex)
    assert await store.first([b"k"]) is None
    await store.put([b"k"], known, Offer(b"{}", 1.0))
    assert await store.take(known.handle) is None
    assert await store.drop([b"k"]) == []
    assert [operation for operation, _ in failures] == ["first", "put", "take", "drop"]
    assert failures[-1][1] == "open"
    await store.close()


async def test_what_another_version_wrote_is_no_entry(own: RedisServer) -> None:
    failures: list[tuple[str, str]] = []
    store = store_at(own.url, failures)
    async with Redis.from_url(own.url) as client:
        for value in (b"not json", b'{"a":1}', b"[1,2,3,4,5,6,7,8,9]", b"[]"):
            await client.set(b"neuron-pd:turn:" + b"k".hex().encode(), value)
            assert await store.first([b"k"]) is None
    assert not failures
    await store.close()


async def test_the_password_comes_from_the_url_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer(tmp_path, "--requirepass", "s3cret") as server:
        failures: list[tuple[str, str]] = []
        for url, environment in (
            (server.url.replace("//", "//:s3cret@"), ""),
            (server.url, "s3cret"),
            (server.url, ""),
        ):
            monkeypatch.setenv(PASSWORD_ENV, environment)
            store = store_at(url, failures)
            await store.put([b"k"], Known("http://d", uuid4().hex))
            await store.close()
    assert failures == [("put", "AuthenticationError")]


def test_urls_that_are_none() -> None:
    for url in ("http://x", "redis", "memcached://x:1"):
        with pytest.raises(UsageError, match="--store"):
            check_url(url)
    with pytest.raises(UsageError, match="--store"):
        open_store(Conversations(store="redis://host:port/0"), lambda *_: None)


def test_a_password_is_never_shown() -> None:
    assert without_password("redis://user:pw@host:6379/0?x=1") == "redis://host:6379/0?x=1"
    with pytest.raises(UsageError) as raised:
        check_url("http://user:pw@host")
    assert "pw" not in str(raised.value)
