import pytest

from neuron_pd.bench.client import session
from neuron_pd.bench.target import Endpoints, ServedModel, check_room, ruler, served_model
from neuron_pd.errors import EngineError, UsageError

from .endpoint import MODEL, OVERHEAD, Endpoint


async def test_the_first_model_or_the_wanted_one(endpoint: Endpoint) -> None:
    async with session() as http:
        assert await served_model(http, endpoint.url, None) == ServedModel(MODEL, 4096)
        endpoint.max_model_len = None
        assert await served_model(http, endpoint.url, MODEL) == ServedModel(MODEL, None)
        with pytest.raises(UsageError, match=f"does not serve 'Other': name one of {MODEL} with --model"):
            await served_model(http, endpoint.url, "Other")


async def test_servers_that_cannot_be_measured(endpoint: Endpoint, unused_tcp_port: int) -> None:
    async with session() as http:
        with pytest.raises(UsageError, match=r"no server answers at .*: start one with `neuron-pd up`"):
            await served_model(http, f"http://127.0.0.1:{unused_tcp_port}", None)
        with pytest.raises(UsageError, match="is not an OpenAI-compatible server"):
            await served_model(http, "http://", None)
        with pytest.raises(UsageError, match="is not an OpenAI-compatible server"):
            await served_model(http, f"{endpoint.url}/metrics?", None)
        endpoint.status_of_models = 503
        with pytest.raises(UsageError, match=r"lists no model \(HTTP 503\): wait until"):
            await served_model(http, endpoint.url, None)


async def test_the_tokenizer_measures_text_and_template(endpoint: Endpoint) -> None:
    async with session() as http:
        measure = await ruler(http, Endpoints(endpoint.url), MODEL)
        assert measure.overhead == OVERHEAD
        assert len((await measure.text("key", 500)).split()) == pytest.approx(500, abs=2)
        endpoint.tokenizer = False
        with pytest.raises(EngineError, match="/tokenize stopped answering"):
            await measure.text("key", 500)
    assert endpoint.requests == []


async def test_an_engine_counts_where_the_proxy_does_not(endpoint: Endpoint, unused_tcp_port: int) -> None:
    async with session() as http:
        measure = await ruler(http, Endpoints(f"http://127.0.0.1:{unused_tcp_port}", decode=endpoint.url), MODEL)
    assert measure.count is not None


async def test_without_a_tokenizer_a_reply_calibrates(endpoint: Endpoint) -> None:
    endpoint.tokenizer = False
    async with session() as http:
        measure = await ruler(http, Endpoints(endpoint.url), MODEL)
        (request,) = endpoint.requests
        assert (request["max_tokens"], request["off"]) == (1, True)
        assert len((await measure.text("key", 1000)).split()) == pytest.approx(1000, rel=0.05)
        endpoint.fail_at = ("off", 1)
        with pytest.raises(EngineError, match=r"the first request to .* failed: HTTP 503"):
            await ruler(http, Endpoints(endpoint.url), MODEL)


def test_a_conversation_must_fit_the_model() -> None:
    check_room(ServedModel("m", 9000), (1024, 8192), 808)
    check_room(ServedModel("m", None), (10**9,), 808)
    with pytest.raises(
        UsageError, match="starts at 8192 tokens grows to about 9001, and m takes 9000: use --lengths up to 8191"
    ):
        check_room(ServedModel("m", 9000), (8192, 1024), 809)
