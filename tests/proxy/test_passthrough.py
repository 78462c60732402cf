"""What is passed on to an engine as it came, and what is not."""

import asyncio
from typing import Any

import pytest

from neuron_pd.core import control
from tests.proxy.conftest import CHAT, Cluster, running


async def test_models(cluster: Cluster) -> None:
    assert (await cluster.get("/v1/models")).json["data"] == [{"id": "fake", "object": "model"}]


@pytest.mark.parametrize("path", ["/detokenize", "/v1/embeddings", "/v1/messages/count_tokens", "/score", "/v1/rerank"])
async def test_post(cluster: Cluster, path: str) -> None:
    answer = await cluster.post({"input": "hello"}, path + "?a=b", Authorization="Bearer k")
    assert answer.json == {"path": path + "?a=b", "method": "POST", "bytes": 17}
    assert cluster.decode.at(path)[0].headers["authorization"] == "Bearer k"
    assert not cluster.prefill.at(path)


async def test_status_and_type_are_the_engines(cluster: Cluster) -> None:
    answer = await cluster.get("/v1/teapot")
    assert (answer.status, answer.raw) == (418, b"short and stout")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    "path",
    [
        control.INFO,
        control.STATS,
        "/reset_prefix_cache",
        "/sleep",
        "/v1/load_lora_adapter",
        "/v1/load%5flora_adapter",
        "/%6eeuron_pd/v1/info",
        "/v1/%2e%2e/neuron_pd/v1/info",
        "/nothing",
        "/",
        "//v1/models",
    ],
)
async def test_not_served_here(cluster: Cluster, path: str) -> None:
    answer = await raw(
        cluster, b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}" % path.encode()
    )
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"type":"not_found_error"' in answer
    assert not cluster.decode.asked


async def test_control_token_of_a_client_is_not_passed_on() -> None:
    async with running(token="secret") as cluster:
        await cluster.post({}, "/tokenize", X_Neuron_PD_Token="guess")
        assert control.TOKEN_HEADER not in cluster.decode.at("/tokenize")[0].headers
        await cluster.post({"messages": []}, CHAT, X_Neuron_PD_Token="guess")
        assert control.TOKEN_HEADER not in cluster.decode.generated[0].headers


async def test_other_methods(cluster: Cluster) -> None:
    assert (await raw(cluster, request(b"PUT", b"/v1/models"))).startswith(b"HTTP/1.1 405 ")
    assert (await raw(cluster, request(b"POST", b"/health"))).startswith(b"HTTP/1.1 405 ")
    head = await raw(cluster, request(b"HEAD", b"/v1/models"))
    assert head.startswith(b"HTTP/1.1 200 ")
    assert head.endswith(b"\r\n\r\n")


async def test_hop_by_hop_headers_stop_here(cluster: Cluster) -> None:
    sent = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nTE: x\r\n"
    await raw(cluster, sent + b"X-Kept: 2\r\nContent-Length: 2\r\n\r\n{}")
    headers = cluster.decode.at("/tokenize")[0].headers
    assert headers["x-kept"] == "2"
    assert not {"x-mine", "keep-alive", "te"} & set(headers)


async def test_large_unsized_answers_stream(cluster: Cluster) -> None:
    answer = await cluster.post({"stream": True, "messages": []}, "/v1/chat/completions/render")
    assert answer.status == 200


async def test_a_d_that_refuses_is_passed_over() -> None:
    async with running(decode=2) as cluster:
        await cluster.decodes[0].stop()
        assert [(await cluster.get("/v1/models")).status for _ in range(4)] == [200] * 4
        await cluster.decodes[1].stop()
        answer = await cluster.get("/v1/models")
        assert (answer.status, answer.json["error"]["code"]) == (503, "no_engine_ready")


def request(method: bytes, path: bytes) -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def raw(cluster: Cluster, data: bytes) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.proxy.port)
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer
