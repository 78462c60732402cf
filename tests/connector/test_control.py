"""The control path as an ASGI application in front of another; the engine behind it is played."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from neuron_pd.core.control import ACQUIRE, INFO, MAX_BODY_BYTES, RELEASE, STATS, TOKEN_HEADER

pytestmark = pytest.mark.vllm

TOKEN = {TOKEN_HEADER: "secret"}
Answer = Callable[[str, str], list[Any]]


class PlayedEngine:
    """What `app.state.engine_client.engine_core` is to the middleware: an answer of each data-parallel rank."""

    core_engines = (0, 1)

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[tuple[str, str]] = []

    async def _call_utility_async(self, method: str, verb: str, argument: str, *, engine: int) -> Any:
        assert method == "neuron_pd_control"
        if engine == 0:
            self.calls.append((verb, argument))
        return self.answer(verb, argument)[engine]


class Client:
    def __init__(self, answer: Answer, *, api_key: list[str] | None = None, peer: str = "127.0.0.1") -> None:
        from neuron_pd.connector.control import ControlPath

        self.engine = PlayedEngine(answer)
        state = SimpleNamespace(
            engine_client=SimpleNamespace(engine_core=self.engine), args=SimpleNamespace(api_key=api_key)
        )
        path = ControlPath(self._openai)

        async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await path({**scope, "app": SimpleNamespace(state=state)}, receive, send)

        transport = httpx.ASGITransport(app=app, client=(peer, 1234))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://engine")

    @staticmethod
    async def _openai(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b"the OpenAI application"})

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(path, content=content, headers=TOKEN if headers is None else headers)


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PD_CONTROL_TOKEN", "secret")


async def test_other_paths_go_through_untouched() -> None:
    response = await Client(lambda *_: []).http.get("/v1/models")
    assert (response.status_code, response.text) == (299, "the OpenAI application")


async def test_acquire_answers_with_the_rank_that_has_the_record() -> None:
    client = Client(lambda *_: [{"reason": "unknown_handle"}, {"kv_transfer_params": {"x": 1}}])
    response = await client.post(ACQUIRE, {"handle": "h", "a_newer_field": 1})
    assert (response.status_code, response.json()) == (200, {"kv_transfer_params": {"x": 1}})
    assert client.engine.calls == [("acquire", "h")]


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["unknown_handle", "unknown_handle"], "unknown_handle"),
        (["unknown_handle", "evicted"], "evicted"),
        (["disabled", "disabled"], "disabled"),
    ],
)
async def test_a_miss_is_404_with_the_telling_reason(reasons: list[str], expected: str) -> None:
    response = await Client(lambda *_: [{"reason": reason} for reason in reasons]).post(ACQUIRE, {"handle": "h"})
    assert (response.status_code, response.json()) == (404, {"reason": expected})


async def test_release_takes_a_lease_or_a_handle_and_sums() -> None:
    client = Client(lambda *_: [1, 2])
    assert (await client.post(RELEASE, {"lease": "l"})).json() == {"released": 3}
    assert (await client.post(RELEASE, {"handle": "h"})).json() == {"released": 3}
    assert client.engine.calls == [("release", "l"), ("release", "h")]


async def test_info_lists_every_rank_and_stats_are_summed() -> None:
    client = Client(
        lambda verb, _: (
            [{"engine_id": "a", "n": 1}, {"engine_id": "b"}] if verb == "info" else [{"n": 1}, {"n": 2, "m": 3}]
        )
    )
    info = (await client.http.get(INFO, headers=TOKEN)).json()
    assert info == {"engine_id": "a", "n": 1, "engine_ids": ["a", "b"]}
    assert (await client.http.get(STATS, headers=TOKEN)).json() == {"m": 3, "n": 3}


@pytest.mark.parametrize(
    "body",
    [b"", b"not json", b"\xff", [], "text", {}, {"handle": 5}, {"handle": ""}, {"handle": "x" * 129}, {"lease": "l"}],
)
async def test_what_is_not_understood_is_400_and_never_reaches_the_engine(body: Any) -> None:
    client = Client(lambda *_: [])
    response = await client.post(ACQUIRE, body)
    assert response.status_code == 400
    assert "handle" in response.json()["error"] or "JSON" in response.json()["error"]
    assert client.engine.calls == []


async def test_bodies_are_bounded() -> None:
    response = await Client(lambda *_: []).post(ACQUIRE, b"x" * (MAX_BODY_BYTES + 1))
    assert response.status_code == 413


async def test_wrong_method_and_unknown_request() -> None:
    client = Client(lambda *_: [])
    assert (await client.http.get(ACQUIRE, headers=TOKEN)).status_code == 405
    assert (await client.post("/neuron_pd/v1/nothing", {})).status_code == 404


@pytest.mark.parametrize(
    "headers", [{}, {TOKEN_HEADER: ""}, {TOKEN_HEADER: "wrong"}, {"authorization": "Bearer secret"}]
)
async def test_a_wrong_token_is_401(headers: dict[str, str]) -> None:
    client = Client(lambda *_: [1, 1])
    assert (await client.post(RELEASE, {"lease": "l"}, headers)).status_code == 401
    assert client.engine.calls == []


@pytest.mark.parametrize(("given", "status"), [("key-2", 200), ("wrong", 401), ("", 401)])
async def test_without_a_token_vllms_api_key_guards(monkeypatch: pytest.MonkeyPatch, given: str, status: int) -> None:
    monkeypatch.delenv("NEURON_PD_CONTROL_TOKEN")
    client = Client(lambda *_: [1, 1], api_key=["key-1", "key-2"])
    response = await client.post(RELEASE, {"lease": "l"}, {"authorization": f"Bearer {given}"})
    assert response.status_code == status


@pytest.mark.parametrize(("peer", "status"), [("127.0.0.1", 200), ("::1", 200), ("10.0.0.9", 401), ("testclient", 401)])
async def test_without_any_secret_only_loopback_is_answered(
    monkeypatch: pytest.MonkeyPatch, peer: str, status: int
) -> None:
    monkeypatch.delenv("NEURON_PD_CONTROL_TOKEN")
    client = Client(lambda *_: [1, 1], peer=peer)
    assert (await client.post(RELEASE, {"lease": "l"}, {})).status_code == status


async def test_a_dead_engine_is_503_and_a_silent_one_504(monkeypatch: pytest.MonkeyPatch) -> None:
    from neuron_pd.connector import compat

    def dead(*_: str) -> list[Any]:
        raise RuntimeError("engine core is dead")

    assert (await Client(dead).post(ACQUIRE, {"handle": "h"})).status_code == 503

    client = Client(dead)

    async def silent(*_: str, engine: int) -> None:
        await asyncio.sleep(3600)

    client.engine._call_utility_async = silent  # type: ignore[method-assign]
    monkeypatch.setattr(compat, "ENGINE_TIMEOUT_SECONDS", 0.01)
    assert (await client.post(ACQUIRE, {"handle": "h"})).status_code == 504
