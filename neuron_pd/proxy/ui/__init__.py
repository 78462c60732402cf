"""The live page at `/ui`: engines, conversations, hit rate, time to first token. No assets from elsewhere.

Everything that the page shows comes as JSON from `/ui/state` and goes into the document as text. The policy that the
page is served with lets only its own script and style run.
"""

import base64
from hashlib import sha256
from importlib.resources import files

import orjson

from neuron_pd.proxy.admin import describe, keys_held
from neuron_pd.proxy.errors import JSON, Refusal
from neuron_pd.proxy.http import Header, Request, Responder
from neuron_pd.proxy.metrics import Metrics
from neuron_pd.proxy.pools.roster import Roster
from neuron_pd.proxy.probe import usable_pair
from neuron_pd.proxy.store import Store

PAGE, STATE = "/ui", "/ui/state"
PAGES = frozenset((PAGE, STATE))
FRESH = (b"cache-control", b"no-store")


def answer(request: Request, responder: Responder, roster: Roster, metrics: Metrics, store: Store) -> int:
    """The page, or what it shows."""
    if request.method not in (b"GET", b"HEAD"):
        raise Refusal(405, "this page is read with GET", "method_not_allowed", ((b"allow", b"GET, HEAD"),))
    if request.path == PAGE:
        responder.send(200, HEADERS, DOCUMENT)
    else:
        responder.send(200, [JSON, FRESH], state(roster, metrics, store))
    return 200


def state(roster: Roster, metrics: Metrics, store: Store) -> bytes:
    """What the page shows, as JSON."""
    engines = roster.engines
    body = {
        "ready": usable_pair(engines),
        "engines": [describe(engine) for engine in engines.every],
        "sources": [{"source": source, "what": what} for source, what in roster.problems.items()],
        "streams": metrics.streams,
        "conversation_keys": keys_held(store),
        "recent": metrics.recent.summary(),
    }
    return orjson.dumps(body)


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
