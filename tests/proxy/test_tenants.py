"""Who comes in, which models they get, and what engines see of keys."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_pd.core import control
from neuron_pd.proxy.keyfile import add_key
from neuron_pd.proxy.settings import Access
from tests.fakes.apis import GENERATE
from tests.proxy.conftest import Cluster, chat, running

LONG = "please tell me everything about the sea and the ships on it"
SECOND = (LONG, "the reply", "go on")


class Guarded:
    """A cluster with two tenants; the second may use one model."""

    def __init__(self, cluster: Cluster, path: Path, one: str, two: str) -> None:
        self.cluster, self.path, self.one, self.two = cluster, path, one, two


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    path = tmp_path / "keys.yaml"
    one, two = add_key(path, "one"), add_key(path, "two", ["fake"])
    async with running(access=Access(path, "engines-own")) as cluster:
        yield Guarded(cluster, path, one, two)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", [*GENERATE, "/v1/models", "/tokenize", "/neuron_pd/v1/conversations/x", "/nothing"])
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", "Basic abc", "Bearer \xff"])
async def test_without_a_key_nobody_comes_in(guarded: Guarded, path: str, header: str | None) -> None:
    answer = await guarded.cluster.post(chat(LONG), path, **({} if header is None else {"authorization": header}))
    error = answer.json["error"]
    assert (answer.status, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert not guarded.cluster.prefill.generated
    assert not guarded.cluster.decode.asked


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
async def test_the_proxys_pages_need_no_key(guarded: Guarded, path: str) -> None:
    assert (await guarded.cluster.get(path)).status == 200


async def test_a_key_comes_in_and_stops_here(guarded: Guarded) -> None:
    """Engines get their own key, the control path too."""
    for headers in (bearer(guarded.one), {"x-api-key": guarded.one}, {"authorization": f"bearer  {guarded.one} "}):
        assert (await guarded.cluster.post(chat(LONG), **headers)).status == 200
        assert (await guarded.cluster.post({"model": "fake"}, "/tokenize", **headers)).status == 200
    for engine in (guarded.cluster.prefill, guarded.cluster.decode):
        assert engine.requests
        for request in engine.requests:
            assert request.headers["authorization"] == "Bearer engines-own"
            assert "x-api-key" not in request.headers


async def test_engines_own_key_without_a_key_file() -> None:
    async with running(access=Access(None, "engines-own")) as cluster:
        assert (await cluster.post(chat(LONG), authorization="Bearer clients")).status == 200
        assert cluster.prefill.generated[0].headers["authorization"] == "Bearer engines-own"


async def test_conversations_belong_to_the_tenant(guarded: Guarded, tmp_path: Path) -> None:
    post, again = guarded.cluster.post, add_key(guarded.path, "one")
    guarded.cluster.proxy.reload()
    await post(chat(LONG, conversation_id="c"), **bearer(guarded.one))
    await post(chat(*SECOND, conversation_id="c"), **bearer(guarded.two))
    assert not guarded.cluster.decode.at(control.ACQUIRE)
    other_key = await post(chat(*SECOND, conversation_id="c"), **bearer(again))
    assert other_key.turn["path"] == "read_back"


@pytest.mark.parametrize("path", GENERATE)
async def test_models_that_a_key_may_not_use_do_not_exist(guarded: Guarded, path: str) -> None:
    for body in ({**chat(LONG), "model": "other"}, {"messages": chat(LONG)["messages"]}):
        answer = await guarded.cluster.post(body, path, **bearer(guarded.two))
        assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
    assert not guarded.cluster.prefill.generated
    assert (await guarded.cluster.post(chat(LONG), **bearer(guarded.two))).status == 200


async def test_models_elsewhere(guarded: Guarded) -> None:
    post, session, url = guarded.cluster.post, guarded.cluster.session, guarded.cluster.url
    for body in ({"model": "other"}, {}, []):
        assert (await post(body, "/v1/embeddings", **bearer(guarded.two))).status == 404
    assert (await post(b"--form", "/v1/audio/transcriptions", **bearer(guarded.two))).status == 400
    assert (await post({"model": "fake"}, "/v1/embeddings", **bearer(guarded.two))).status == 200
    guarded.cluster.decode.models = ["fake", "other"]
    for key, names in ((guarded.one, ["fake", "other"]), (guarded.two, ["fake"])):
        async with session.get(url + "/v1/models", headers=bearer(key)) as response:
            assert [model["id"] for model in (await response.json())["data"]] == names
        async with session.get(url + "/v1/models/other", headers=bearer(key)) as response:
            assert response.status == (200 if "other" in names else 404)


async def test_keys_come_and_go_while_the_proxy_runs(guarded: Guarded) -> None:
    cluster, text = guarded.cluster, guarded.path.read_text()
    late = add_key(guarded.path, "late")
    cluster.proxy.reload()
    assert (await cluster.post(chat(LONG), **bearer(late))).status == 200
    guarded.path.write_text("keys: nonsense")
    cluster.proxy.reload()
    assert (await cluster.post(chat(LONG), **bearer(late))).status == 200, "a bad file leaves the last good keys"
    guarded.path.unlink()
    cluster.proxy.reload()
    assert (await cluster.post(chat(LONG), **bearer(late))).status == 200
    guarded.path.write_text(text)
    cluster.proxy.reload()
    assert (await cluster.post(chat(LONG), **bearer(late))).status == 401
    assert (await cluster.post(chat(LONG), **bearer(guarded.one))).status == 200


@pytest.mark.slow
async def test_a_changed_file_is_noticed_without_a_signal(guarded: Guarded) -> None:
    late = add_key(guarded.path, "late")
    async with asyncio.timeout(20):
        while (await guarded.cluster.post({"model": "fake"}, "/tokenize", **bearer(late))).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
