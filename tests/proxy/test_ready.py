"""`/health`, `/ready`, `/metrics`: what is wrong, and the setting to change."""

from typing import Any

import pytest

from tests.proxy.conftest import Cluster, chat, running


async def said(cluster: Cluster) -> tuple[int, list[str]]:
    """The status of /ready, and every "what; change"."""
    await cluster.proxy.probe.once()
    answer = await cluster.get("/ready")
    problems = [problem for engine in answer.json["engines"] for problem in engine["problems"]]
    return answer.status, [f"{problem['what']}; {problem['change']}" for problem in problems]


async def test_all_is_well(cluster: Cluster) -> None:
    assert await said(cluster) == (200, [])
    body = (await cluster.get("/ready")).json
    assert body["ready"] is True
    assert [(engine["role"], engine["usable"], engine["reuse"]) for engine in body["engines"]] == [
        ("prefill", True, True),
        ("decode", True, True),
    ]


@pytest.mark.parametrize("which", ["prefill", "decode"])
async def test_nothing_listens(which: str) -> None:
    async with running() as cluster:
        await (cluster.prefill if which == "prefill" else cluster.decode).stop()
        status, (problem,) = await said(cluster)
        assert status == 503
        assert "cannot connect" in problem
        assert f"--{which}" in problem
        assert (await cluster.get("/health")).status == 200
        answer = await cluster.post(chat("hello"))
        assert (answer.status, answer.json["error"]["code"]) == (503, "no_engine_ready")


async def test_one_of_two_is_enough() -> None:
    async with running(prefill=2, decode=2) as cluster:
        await cluster.prefills[0].stop()
        await cluster.decodes[1].stop()
        status, problems = await said(cluster)
        assert (status, len(problems)) == (200, 2)


async def test_unhealthy(cluster: Cluster) -> None:
    cluster.decode.healthy = False
    status, (problem,) = await said(cluster)
    assert status == 503
    assert "GET /health answers 503" in problem
    cluster.decode.healthy = True
    assert await said(cluster) == (200, [])


@pytest.mark.parametrize(
    ("role", "info", "what", "change", "status"),
    [
        ("decode", {"bidirectional": False}, "bidirectional_kv_xfer is off", "bidirectional_kv_xfer to true", 200),
        ("prefill", {"bidirectional": False}, "bidirectional_kv_xfer is off", "bidirectional_kv_xfer to true", 200),
        ("decode", {"prefix_caching": False}, "prefix caching is off", "--no-enable-prefix-caching", 200),
        ("decode", {"role": "prefill"}, "its role is prefill", "--role decode", 200),
        ("decode", {"vllm": "0.29.0"}, "vLLM 0.29.0 here, 0.32.0", "same vLLM version", 503),
        ("decode", {"block_size": 32}, "blocks of 32 tokens here, 16", "--block-size", 503),
        ("decode", {"kv_layout": "NHD"}, "KV layout NHD here, HND at", "VLLM_KV_CACHE_LAYOUT", 200),
        ("prefill", {"retention": "pin"}, "retention lease here, pin at", "set the same retention", 200),
        ("decode", {"model": "/models/other"}, "model other here, fake", "same model", 200),
        ("decode", {"version": "9"}, "neuron-pd 9 here, 0.1.0", "same neuron-pd version", 200),
    ],
)
async def test_not_what_it_should_be(role: str, info: dict[str, Any], what: str, change: str, status: int) -> None:
    async with running() as cluster:
        engine = cluster.prefill if role == "prefill" else cluster.decode
        assert engine.info is not None
        engine.info.update(info)
        answered, (problem,) = await said(cluster)
        assert answered == status
        assert what in problem
        assert change in problem
        assert (await cluster.post(chat("hello"))).status == status


async def test_no_connector_is_ordinary_serving(cluster: Cluster) -> None:
    cluster.prefill.info = None
    status, (problem,) = await said(cluster)
    assert status == 200
    assert "no neuron-pd connector" in problem
    assert "ControlPath" in problem


@pytest.mark.parametrize(
    ("given", "change"), [(None, "set NEURON_PD_CONTROL_TOKEN_FILE"), ("other", "the same NEURON_PD")]
)
async def test_control_token(given: str | None, change: str) -> None:
    async with running(token=given) as cluster:
        for engine in (cluster.prefill, cluster.decode):
            engine.token = "secret"
        status, problems = await said(cluster)
        assert status == 200
        assert len(problems) == 2
        assert all(change in problem and "secret" not in problem for problem in problems)


async def test_another_protocol(cluster: Cluster) -> None:
    cluster.decode.info = {"hello": 1}
    status, (problem,) = await said(cluster)
    assert status == 200
    assert "speaks another version" in problem


async def test_metrics(cluster: Cluster) -> None:
    await cluster.post(chat("please tell me everything about the sea", conversation_id="c"))
    await cluster.post(chat("please tell me everything about the sea", "the reply", "x", conversation_id="c"))
    await cluster.get("/nothing")
    lines = (await cluster.get("/metrics")).raw.decode().splitlines()
    for line in (
        'neuron_pd_proxy_requests_total{path="/v1/chat/completions",status="200"} 2.0',
        'neuron_pd_proxy_requests_total{path="other",status="404"} 1.0',
        'neuron_pd_proxy_turns_total{path="read_back"} 1.0',
        'neuron_pd_proxy_reuse_total{outcome="miss",reason="none"} 1.0',
        'neuron_pd_proxy_reuse_total{outcome="hit",reason="reused"} 1.0',
        'neuron_pd_proxy_conversation_lookups_total{found="yes",source="body"} 1.0',
        'neuron_pd_proxy_tokens_total{kind="reused"} 65.0',
        "neuron_pd_proxy_acquire_seconds_count 1.0",
        "neuron_pd_proxy_prefill_seconds_count 2.0",
        'neuron_pd_proxy_prefill_seconds_bucket{le="+Inf"} 2.0',
        "neuron_pd_proxy_conversation_keys 1.0",
    ):
        assert line in lines
    assert f'neuron_pd_proxy_engine_requests_in_flight{{engine="{cluster.decode.url}",role="decode"}} 0.0' in lines


async def test_log_line_of_a_turn(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "neuron_pd.proxy")
    await cluster.post(chat("a secret prompt", conversation_id="secret-id"), Authorization="Bearer secret-key")
    (line,) = [record.getMessage() for record in caplog.records if "Prefill done in" in record.getMessage()]
    assert line.startswith("Prefill done in ")
    assert "ms cache MISS path=recompute reason=none reused=0 prompt=32 status=200" in line
    assert "secret" not in caplog.text
