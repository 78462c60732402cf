"""One turn: what P and D are sent, and what the client gets."""

import gc
import json
from typing import Any

import pytest

from neuron_pd.core.transfer import FINGERPRINT, HANDLE, TURN
from neuron_pd.proxy.http import Limits, Responder, Response
from neuron_pd.proxy.turn import Turn
from tests.proxy.conftest import CHAT, Cluster, chat, running

LONG = "please tell me everything about the sea and the ships on it"
COMPLETIONS = "/v1/completions"


def secrets(raw: bytes) -> list[bytes]:
    names = (b"kv_transfer_params", b"remote_", b"block_ids", b"decode-secret", b"pin-", b"neuron_pd_handle", b"5600")
    return [name for name in names if name in raw]


async def test_what_each_leg_is_sent(cluster: Cluster) -> None:
    sent = chat(LONG, max_completion_tokens=500, min_tokens=3, stream=True, stream_options={"include_usage": True})
    answer = await cluster.post(sent, Authorization="Bearer key", X_Request_Id="r1", Accept_Encoding="gzip")
    assert answer.status == 200
    (prefill,), (decode,) = cluster.prefill.generated, cluster.decode.generated
    assert prefill.body == {
        **chat(LONG, max_completion_tokens=1, max_tokens=1, stream=False),
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    params = decode.body["kv_transfer_params"]
    assert decode.body == {**sent, "kv_transfer_params": params}
    assert params["do_remote_prefill"] is True
    assert params["remote_engine_id"] == "prefill-engine"
    assert TURN not in params
    assert len(params[HANDLE]) == 32
    for request in (prefill, decode):
        assert request.headers["authorization"] == "Bearer key"
        assert request.headers["x-request-id"] == "r1"
        assert request.headers["content-type"] == "application/json"
        assert "accept-encoding" not in request.headers


async def test_whole_answer_is_ds_own_without_transfer_params(cluster: Cluster) -> None:
    body = {
        "id": "chatcmpl-9",
        "created": 7,
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": None, "reasoning": "\u2028", "refusal": None, "tool_calls": [{"id": "t"}]},
            "logprobs": {"content": [{"token": "x", "logprob": -1e-9}]}}],
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
    }  # fmt: skip
    raw = json.dumps(body, ensure_ascii=False).encode()
    cluster.decode.answer = raw[:-1] + b', "kv_transfer_params": {"remote_host": "10.0.0.7"}}'
    answer = await cluster.post(chat(LONG))
    assert answer.raw == raw
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(raw))


async def test_streamed_answer_is_ds_own_without_transfer_params(cluster: Cluster) -> None:
    sent = chat(LONG, stream=True)
    answer = await cluster.post(sent)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.raw.endswith(b"data: [DONE]\n\n")
    assert [event["id"] for event in answer.events] == ["chatcmpl-1"] * 3
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in answer.events) == "the reply"
    assert answer.events[-1]["choices"][0]["finish_reason"] == "stop"
    assert not secrets(answer.raw)


async def test_usage_chunk_is_passed_on_and_never_invented(cluster: Cluster) -> None:
    asked = await cluster.post(chat(LONG, stream=True, stream_options={"include_usage": True}))
    assert asked.events[-1]["choices"] == []
    assert asked.events[-1]["usage"]["total_tokens"] == 10
    unasked = await cluster.post(chat(LONG, stream=True))
    assert not any("usage" in event for event in unasked.events)


ODD = (
    'data: {"choices":[{"index":0,"delta":{"content":"a\u2028b\u2029c\u0085d\\u000b"}}],"kv_transfer_params":null}\n\n'
    'data: {"choices":[{"index":0,"delta":{"content":"\\"kv_transfer_params\\": {}"}}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"kv_transfer_params":{"host":"10.1.2.3"}}\n\n'
    "data: [DONE]\n\n"
).encode()


@pytest.mark.parametrize("size", [1, 3, 16, 100, 10_000])
async def test_odd_bytes_in_odd_pieces(cluster: Cluster, size: int) -> None:
    cluster.decode.events = [ODD[start : start + size] for start in range(0, len(ODD), size)]
    answer = await cluster.post(chat(LONG, stream=True))
    expected = ODD.replace(b',"kv_transfer_params":null', b"")
    assert answer.raw == expected.replace(b',"kv_transfer_params":{"host":"10.1.2.3"}', b"")


async def test_a_line_of_megabytes(cluster: Cluster) -> None:
    line = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 5_000_000 + b'"}}]}\n\n'
    cluster.decode.events = [line, b"data: [DONE]\n\n"]
    answer = await cluster.post(chat(LONG, stream=True))
    assert answer.raw == line + b"data: [DONE]\n\n"


async def test_a_body_of_30_mib(cluster: Cluster) -> None:
    sent = chat("x" * (30 * 1024 * 1024), conversation_id="big")
    answer = await cluster.post(sent)
    assert answer.status == 200
    (decode,) = cluster.decode.generated
    assert decode.body["messages"] == sent["messages"]
    assert "conversation_id" not in decode.body
    assert "conversation_id" not in cluster.prefill.generated[0].body


async def test_too_large_a_body_is_refused() -> None:
    async with running(limits=Limits(max_body=1000)) as cluster:
        answer = await cluster.post(chat("x" * 2000))
        assert (answer.status, answer.json["error"]["type"]) == (413, "invalid_request_error")
        assert not cluster.prefill.generated


async def test_headers_about_the_turn(cluster: Cluster) -> None:
    answer = await cluster.post(chat(LONG))
    timing = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert set(timing) == {"acquire", "prefill"}
    assert float(timing["prefill"]) > 0
    assert answer.turn == {
        "path": "recompute", "reason": "no_lease", "prompt": str(len(LONG) + 17), "offered": "0", "verified": "0",
        "reused": "0", "local": "0", "offer": "none",
    }  # fmt: skip
    assert not secrets(str(answer.headers).encode())


@pytest.mark.parametrize("stream", [False, True])
async def test_completions(cluster: Cluster, stream: bool) -> None:
    answer = await cluster.post({"model": "fake", "prompt": LONG, "max_tokens": 20, "stream": stream}, COMPLETIONS)
    if stream:
        assert "".join(event["choices"][0]["text"] for event in answer.events) == "the reply"
    else:
        assert answer.json["choices"][0]["text"] == "the reply"
    assert cluster.prefill.generated[0].body["max_tokens"] == 1
    assert cluster.decode.generated[0].body["max_tokens"] == 20


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": ["one", "two", "three"]}, "several_prompts"),
        ({"prompt": LONG, "use_beam_search": True, "n": 2}, "beam_search"),
        ({"prompt": LONG, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"prompt": LONG, "max_tokens": 0}, "no_output"),
    ],
)
async def test_served_by_d_alone(cluster: Cluster, fields: dict[str, Any], reason: str) -> None:
    """router-cases: several prompts are answered in order, never with one block list shared between them."""
    sent = {"model": "fake", **fields}
    answer = await cluster.post(sent, COMPLETIONS)
    assert answer.status == 200
    assert not cluster.prefill.generated
    assert cluster.decode.generated[0].body == sent
    assert cluster.proxy.metrics.alone.get(reason) == 1
    assert not secrets(answer.raw)
    assert len(answer.json["choices"]) == fields.get("n", 1)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages", "/v1/embeddings"])
@pytest.mark.parametrize("name", ["kv_transfer_params", "kv\\u005ftransfer_params"])
async def test_transfer_params_of_a_client_are_refused(cluster: Cluster, path: str, name: str) -> None:
    answer = await cluster.post(b'{"model":"m","%b":{"remote_host":"10.0.0.1"}}' % name.encode(), path)
    assert (answer.status, answer.json["error"]["code"]) == (400, "forbidden_field")
    assert not cluster.prefill.generated
    assert not cluster.decode.at(path)


async def test_not_json(cluster: Cluster) -> None:
    answer = await cluster.post(b'{"model":')
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    assert not cluster.prefill.generated


async def test_model_name_goes_to_both_legs_and_ps_404_comes_back(cluster: Cluster) -> None:
    await cluster.post({**chat(LONG), "model": "adapter-a"})
    assert cluster.prefill.generated[0].body["model"] == cluster.decode.generated[0].body["model"] == "adapter-a"
    cluster.prefill.faults.status = 404
    answer = await cluster.post({**chat(LONG), "model": "nothing"})
    assert (answer.status, answer.raw) == (404, cluster.prefill.faults.status_body)
    assert len(cluster.decode.generated) == 1


async def test_several_proxied_requests_on_one_connection(cluster: Cluster) -> None:
    for _ in range(5):
        assert (await cluster.post(chat(LONG, stream=True))).status == 200
    assert len(cluster.proxy.server.connections) == 1
    assert cluster.proxy.client.idle_connections(cluster.origin(cluster.prefill)) == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "127.0.0.1", "::", "::1"])
async def test_side_channel_host_that_means_itself(host: str) -> None:
    """Rewritten where the engine is on another machine; on loopback everything is one machine."""
    from neuron_pd.proxy.breaker import Breaker
    from neuron_pd.proxy.engines import Engine, Role
    from neuron_pd.proxy.http import Origin

    far = Engine(Role.DECODE, Origin("10.0.0.5", 8200), Breaker(lambda: 0.0), "10.1.0.5")
    near = Engine(Role.DECODE, Origin("127.0.0.1", 8200), Breaker(lambda: 0.0), "127.0.0.1")
    params = {"remote_host": host, "remote_port": 5601, "remote_block_ids": [[1]]}
    assert far.reachable(params) == {**params, "remote_host": "10.1.0.5"}
    assert near.reachable(params) == params
    assert far.reachable({"remote_host": "10.9.9.9"}) == {"remote_host": "10.9.9.9"}


async def test_plain_upstream_engines_work_without_reuse() -> None:
    async with running() as cluster:
        for engine in (cluster.prefill, cluster.decode):
            engine.info = None
        await cluster.proxy.probe.once()
        for _ in range(2):
            answer = await cluster.post(chat(LONG, conversation_id="c"))
            assert answer.status == 200
            assert "x-neuron-pd-turn" not in answer.headers
        assert HANDLE not in cluster.decode.generated[1].body["kv_transfer_params"]
        assert FINGERPRINT not in cluster.prefill.generated[1].body["kv_transfer_params"]
        assert not cluster.decode.at("/neuron_pd/v1/acquire")


async def test_p_without_transfer_params_leaves_the_prefill_to_d(cluster: Cluster) -> None:
    cluster.prefill.faults.no_params = True
    sent = chat(LONG)
    answer = await cluster.post(sent)
    assert answer.status == 200
    params = cluster.decode.generated[0].body["kv_transfer_params"]
    assert cluster.decode.generated[0].body == {**sent, "kv_transfer_params": {HANDLE: params[HANDLE]}}
    assert cluster.proxy.metrics.reuse.get("miss", "no_transfer_params") == 1


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_turn_is_freed_as_it_ends(cluster: Cluster, streamed: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert (await cluster.post(chat(LONG, stream=streamed), x_session_id="s")).status == 200
        left = [one for one in gc.get_objects() if isinstance(one, Turn | Response | Responder)]
    finally:
        gc.enable()
    assert left == []
