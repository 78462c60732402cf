"""Spans of turns: their tree, what engines are told of it, and what they may not hold."""

from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from neuron_pd.core import control
from neuron_pd.errors import UsageError
from neuron_pd.proxy.settings import Seen
from neuron_pd.proxy.tracing import NoTracing, OpenTelemetry, to_endpoint
from tests.fakes.otlp import FakeCollector
from tests.proxy.conftest import Cluster, chat, running, until

LONG = "please tell me everything about the sea and the ships on it"
SECOND = (LONG, "the reply", "go on")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traced(cluster: Cluster) -> InMemorySpanExporter:
    """Spans of this cluster's turns, kept in memory as they end."""
    exporter = InMemorySpanExporter()
    cluster.proxy._router = replace(cluster.proxy._router, tracing=OpenTelemetry(SimpleSpanProcessor(exporter)))
    return exporter


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def parent(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def context(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


async def test_the_tree_of_a_turn_and_what_engines_are_told(cluster: Cluster) -> None:
    await cluster.post(chat(LONG, conversation_id="secret-id"))
    exporter = traced(cluster)
    await cluster.post(chat(*SECOND, conversation_id="secret-id"), traceparent=PARENT, tracestate="v=1")
    spans = by_name(exporter)
    assert set(spans) == {"turn", "acquire", "prefill", "decode"}
    turn = spans["turn"]
    assert f"{context(turn).trace_id:032x}" == PARENT[3:35]
    assert f"{parent(turn):016x}" == PARENT[36:52]
    told = {
        "acquire": cluster.decode.at(control.ACQUIRE)[0],
        "prefill": cluster.prefill.generated[1],
        "decode": cluster.decode.generated[1],
    }
    for name, request in told.items():
        assert parent(spans[name]) == context(turn).span_id
        assert request.headers["traceparent"] == f"00-{PARENT[3:35]}-{context(spans[name]).span_id:016x}-01"
        assert request.headers["tracestate"] == "v=1"
    assert turn.attributes is not None
    assert turn.attributes["neuron_pd.path"] == "read_back"
    assert turn.attributes["neuron_pd.status"] == 200
    assert turn.attributes["neuron_pd.reused"] == 85
    prefill = spans["prefill"].attributes
    assert prefill is not None
    assert (prefill["server.address"], prefill["server.port"]) == ("127.0.0.1", cluster.prefill.port)
    everything = " ".join(span.to_json() for span in exporter.get_finished_spans())
    for secret in (LONG, "the reply", "secret-id", "kv_transfer_params"):
        assert secret not in everything


async def test_each_attempt_is_a_span_and_failures_are_marked() -> None:
    async with running(prefill=2) as cluster:
        exporter = traced(cluster)
        cluster.prefills[0].faults.status = 500
        assert (await cluster.post(chat(LONG))).status == 200
        attempts = [span for span in exporter.get_finished_spans() if span.name == "prefill"]
        assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.UNSET]
        assert attempts[0].attributes is not None
        assert attempts[0].attributes["error.type"] == "PrefillFailed"


async def test_a_refused_turn_and_a_client_that_leaves(cluster: Cluster) -> None:
    exporter = traced(cluster)
    cluster.prefill.faults.status = 400
    assert (await cluster.post(chat(LONG))).status == 400
    turn = by_name(exporter)["turn"]
    assert turn.attributes is not None
    assert (turn.attributes["neuron_pd.status"], turn.status.status_code) == (400, StatusCode.ERROR)
    exporter.clear()
    cluster.prefill.faults.status, cluster.prefill.faults.hang = None, True
    with pytest.raises(TimeoutError):
        async with cluster.session.post(f"{cluster.url}/v1/chat/completions", json=chat(LONG), timeout=_seconds(0.2)):
            pass
    await until(lambda: "turn" in by_name(exporter))
    spans = by_name(exporter)
    assert spans["prefill"].status.status_code is StatusCode.ERROR
    assert spans["turn"].attributes is not None
    assert spans["turn"].attributes["neuron_pd.status"] == 499


def _seconds(total: float) -> Any:
    import aiohttp

    return aiohttp.ClientTimeout(total=total)


async def test_over_the_wire_to_a_collector() -> None:
    async with FakeCollector() as collector:
        async with running(seen=Seen(traces=collector.url)) as cluster:
            assert (await cluster.post(chat(LONG), traceparent=PARENT)).status == 200
        # Leaving the block sent what was waiting.
        assert {name: len(spans) for name, spans in collector.spans.items()} == {"turn": 1, "prefill": 1, "decode": 1}
        (turn,), (prefill,) = collector.spans["turn"], collector.spans["prefill"]
        assert turn.trace_id.hex() == PARENT[3:35]
        assert (turn.parent_span_id.hex(), prefill.parent_span_id) == (PARENT[36:52], turn.span_id)
        assert collector.resource["service.name"] == "neuron-pd-proxy"


@pytest.mark.slow
async def test_a_collector_that_is_down_costs_no_answer() -> None:
    async with running(seen=Seen(traces="http://127.0.0.1:9/v1/traces")) as cluster:
        assert (await cluster.post(chat(LONG))).status == 200


async def test_without_an_endpoint_the_client_s_own_goes_through(cluster: Cluster) -> None:
    await cluster.post(chat(LONG), traceparent=PARENT)
    assert cluster.prefill.generated[0].headers["traceparent"] == PARENT
    assert cluster.decode.generated[0].headers["traceparent"] == PARENT


def test_endpoints() -> None:
    assert isinstance(to_endpoint(None), NoTracing)
    with pytest.raises(UsageError, match="write http://HOST:4318/v1/traces"):
        to_endpoint("collector:4318")
