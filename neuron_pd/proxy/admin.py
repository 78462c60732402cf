"""The proxy's own pages: `/health` (the process lives), `/ready` (it can serve, and what is wrong), `/metrics`."""

from collections.abc import Sequence, Sized
from typing import Any

import orjson

from neuron_pd.proxy.admission import Admission
from neuron_pd.proxy.breaker import State
from neuron_pd.proxy.engines import Engine
from neuron_pd.proxy.errors import JSON
from neuron_pd.proxy.http import Responder
from neuron_pd.proxy.metrics import Gauge, Metrics
from neuron_pd.proxy.pools.roster import Roster
from neuron_pd.proxy.probe import usable_pair
from neuron_pd.proxy.store import Store

TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


def health(responder: Responder) -> int:
    responder.send(200, [JSON], b'{"status":"ok"}')
    return 200


def readiness(roster: Roster, draining: bool) -> dict[str, Any]:
    """Whether this process serves: what another one is told of it."""
    in_flight = {f"{engine.role} {engine.url}": engine.requests for engine in roster.engines.every}
    return {"ready": usable_pair(roster.engines) and not draining, "in_flight": in_flight}


def ready(roster: Roster, draining: bool, responder: Responder, others: Sequence[dict[str, Any]]) -> int:
    """200 when at least one P and one D are usable, else 503; always with what is wrong and which setting to change.

    `others`: the readiness of further workers, all of which must be ready too.
    """
    engines = roster.engines
    good = readiness(roster, draining)["ready"] and all(other["ready"] for other in others)
    body: dict[str, Any] = {"ready": good, "engines": [describe(engine) for engine in engines.every]}
    for said in body["engines"]:
        said["in_flight"] += sum(other["in_flight"].get(f"{said['role']} {said['url']}", 0) for other in others)
    if roster.problems:
        body["sources"] = [{"source": source, "what": what} for source, what in roster.problems.items()]
    if draining:
        body["draining"] = True
    status = 200 if good else 503
    responder.send(status, [JSON], orjson.dumps(body))
    return status


def metrics_page(metrics: Metrics, responder: Responder, others: Sequence[dict[str, Any]]) -> int:
    responder.send(200, [TEXT], metrics.text([other["metrics"] for other in others]))
    return 200


def keys_held(store: Store) -> int | None:
    """Keys of finished turns in this process; None where they are kept elsewhere."""
    return len(store) if isinstance(store, Sized) else None


def watch(metrics: Metrics, roster: Roster, store: Store, admission: Admission) -> None:
    """Add the gauges that are read when scraped."""
    engines = roster.engines
    prefix = "neuron_pd_proxy_"
    labels = ("role", "engine")

    def per_engine(attribute: str) -> "Any":
        return lambda: [([engine.role, engine.url], float(getattr(engine, attribute))) for engine in engines.every]

    def breakers() -> list[tuple[list[str], float]]:
        return [
            ([engine.role, engine.url, state], float(engine.breaker.state is state))
            for engine in engines.every
            for state in State
        ]

    def failing() -> list[tuple[list[str], float]]:
        return [([source], 1.0) for source in roster.problems]

    metrics.gauges += [
        Gauge(f"{prefix}engine_requests_in_flight", "Requests in flight", labels, per_engine("requests")),
        Gauge(f"{prefix}engine_load", "In flight: about prompt tokens on P, requests on D", labels, per_engine("load")),
        Gauge(f"{prefix}engine_usable", "Whether it may be given new turns", labels, per_engine("usable"), min),
        Gauge(f"{prefix}engine_draining", "Whether it drains", labels, per_engine("draining"), max),
        Gauge(f"{prefix}breaker_state", "1 for the state that a breaker is in", (*labels, "state"), breakers, max),
        Gauge(f"{prefix}requests_admitted", "Requests with the engines", (), lambda: [([], float(admission.active))]),
        Gauge(f"{prefix}requests_queued", "Requests waiting in line", (), lambda: [([], float(admission.waiting))]),
        Gauge(f"{prefix}pool_source_failing", "Sources of engines that cannot be read", ("source",), failing, max),
    ]
    if isinstance(store, Sized):
        held = store
        metrics.gauges.append(
            Gauge(f"{prefix}conversation_keys", "Keys of finished turns held", (), lambda: [([], float(len(held)))])
        )


def describe(engine: Engine) -> dict[str, Any]:
    """An engine as pages and calls show it."""
    info = engine.info
    return {
        "role": engine.role,
        "url": engine.url,
        "usable": engine.usable,
        "draining": engine.draining,
        "leaving": engine.left,
        "breaker": engine.breaker.state,
        "reuse": engine.reads_back,
        "in_flight": engine.requests,
        "load": engine.load,
        "problems": [{"what": problem.what, "change": problem.change} for problem in engine.problems],
        "info": None if info is None else {"vllm": info.vllm, "block_size": info.block_size, "model": info.model},
    }
