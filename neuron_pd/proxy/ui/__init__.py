"""The live page at `/ui`: engines, conversations, hit rate, time to first token. No assets from elsewhere.

Everything that the page shows comes as JSON from `/ui/state` and goes into the document as text. The policy that the
page is served with lets only its own script and style run.
"""

import base64
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

import orjson

from neuron_pd.proxy.admin import describe, keys_held
from neuron_pd.proxy.engines import Engine
from neuron_pd.proxy.errors import JSON, Refusal
from neuron_pd.proxy.http import Header, Request, Responder
from neuron_pd.proxy.metrics import Metrics
from neuron_pd.proxy.pools.roster import Roster
from neuron_pd.proxy.probe import usable_pair
from neuron_pd.proxy.recent import Finished, summary
from neuron_pd.proxy.store import Store

PAGE, STATE = "/ui", "/ui/state"
Part = dict[str, Any]
FRESH = (b"cache-control", b"no-store")


async def page(request: Request, responder: Responder) -> int:
    """The page itself."""
    if request.method not in (b"GET", b"HEAD"):
        raise Refusal(405, "this page is read with GET", "method_not_allowed", ((b"allow", b"GET, HEAD"),))
    responder.send(200, HEADERS, DOCUMENT)
    return 200


def state(responder: Responder, roster: Roster, parts: Sequence[Part]) -> int:
    """What it shows, of all workers' `parts`."""
    engines = roster.engines
    keys = [part["keys"] for part in parts if part["keys"] is not None]
    body = {
        "ready": usable_pair(engines),
        "engines": [{**describe(engine), **_flight(engine, parts)} for engine in engines.every],
        "sources": [{"source": source, "what": what} for source, what in roster.problems.items()],
        "streams": sum(part["streams"] for part in parts),
        "conversation_keys": sum(keys) if keys else None,
        "recent": summary(Finished(*turn) for part in parts for turn in part["turns"]),
    }
    responder.send(200, [JSON, FRESH], orjson.dumps(body))
    return 200


def part(roster: Roster, metrics: Metrics, store: Store) -> Part:
    """One worker's share of what the page shows, fit for JSON."""
    return {
        "streams": metrics.streams,
        "keys": keys_held(store),
        "turns": [list(turn) for turn in metrics.recent],
        "flight": {f"{engine.role} {engine.url}": [engine.requests, engine.load] for engine in roster.engines.every},
    }


def _flight(engine: Engine, parts: Sequence[Part]) -> dict[str, int]:
    """What an engine has in flight from all workers."""
    each = [part["flight"].get(f"{engine.role} {engine.url}", (0, 0)) for part in parts]
    return {"in_flight": sum(requests for requests, _ in each), "load": sum(load for _, load in each)}


def _assembled() -> tuple[bytes, list[Header]]:
    """The document with its style and script inside, and headers that allow these two and nothing else."""
    here = files(__name__)
    page, style, script = ((here / name).read_text() for name in ("page.html", "page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        FRESH,
    ]
    return page.replace("/*style*/", style).replace("/*script*/", script).encode(), headers


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


DOCUMENT, HEADERS = _assembled()
