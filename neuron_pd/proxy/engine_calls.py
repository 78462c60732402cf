"""Calls that change the pools while the proxy runs, guarded by the control token.

    GET    /neuron_pd/v1/engines                                          -> 200 {"engines": [...]}
    POST   /neuron_pd/v1/engines   {"role": R, "url": U, "kv_host": H}    -> 200 the engine; kv_host may be left out
    DELETE /neuron_pd/v1/engines   {"url": U}                             -> 200 the engine, which leaves
    POST   /neuron_pd/v1/engines/drain    {"url": U}                      -> 200 the engine, which takes no new turns
    POST   /neuron_pd/v1/engines/undrain  {"url": U}                      -> 200 the engine

What is not understood gets a 4xx that says why; without a control token at the proxy every call gets 403.
"""

import contextlib
import hmac
from typing import Any

import orjson

from neuron_pd.core.control import PREFIX, TOKEN_FILE_ENV, TOKEN_HEADER
from neuron_pd.errors import UsageError
from neuron_pd.proxy.admin import describe
from neuron_pd.proxy.engines import Engine, Role, Target
from neuron_pd.proxy.errors import Refusal
from neuron_pd.proxy.http import Origin, Request
from neuron_pd.proxy.pools.roster import Roster

ENGINES = f"{PREFIX}engines"
DRAIN, UNDRAIN = f"{ENGINES}/drain", f"{ENGINES}/undrain"
CALLS = {ENGINES: b"GET, POST, DELETE", DRAIN: b"POST", UNDRAIN: b"POST"}


def carry_out(roster: Roster, token: str | None, request: Request) -> bytes:
    """Carry out one call: the answer's JSON. Refusal when it is not to be."""
    _guard(token, request)
    allowed = CALLS[request.path]
    if request.method not in allowed.split(b", "):
        raise Refusal(405, f"{request.path} takes {allowed.decode()}", "method_not_allowed", ((b"allow", allowed),))
    if request.method == b"GET":
        answer: dict[str, Any] = {"engines": [describe(engine) for engine in roster.engines.every]}
    else:
        answer = describe(_change(roster, request))
    return orjson.dumps(answer)


def repeat(roster: Roster, request: Request) -> None:
    """Carry out a call that another worker has carried out before; what no longer fits is left."""
    with contextlib.suppress(Refusal):
        _change(roster, request)


def _guard(token: str | None, request: Request) -> None:
    if not token:
        raise Refusal(403, f"set {TOKEN_FILE_ENV} for the proxy: without a control token it takes no calls", "no_token")
    if not hmac.compare_digest(request.get(TOKEN_HEADER.encode()) or b"", token.encode()):
        raise Refusal(401, "wrong or missing control token", "wrong_token")


def _change(roster: Roster, request: Request) -> Engine:
    body = _body(request)
    if request.method == b"POST" and request.path == ENGINES:
        return _join(roster, body)
    origin = _origin(body)
    engine = next((one for one in roster.engines.every if one.origin == origin and not one.left), None)
    if engine is None:
        raise Refusal(404, f"{origin.url} is in no pool", "no_such_engine")
    if request.method == b"DELETE":
        roster.leave(engine)
    else:
        roster.drain(engine, on=request.path == DRAIN)
    return engine


def _join(roster: Roster, body: dict[str, Any]) -> Engine:
    role, origin = body.get("role"), _origin(body)
    if role not in tuple(Role):
        raise Refusal(400, f"role must be {' or '.join(Role)}", "bad_engine")
    kv_host = body.get("kv_host", origin.host)
    if not isinstance(kv_host, str) or not kv_host or "/" in kv_host:
        raise Refusal(400, "kv_host must be a host", "bad_engine")
    try:
        return roster.join(Role(role), Target(origin, kv_host))
    except UsageError as error:
        raise Refusal(409, str(error), "bad_engine") from error


def _body(request: Request) -> dict[str, Any]:
    try:
        body = orjson.loads(request.body)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise Refusal(400, "the body must be a JSON object", "bad_json")
    return body


def _origin(body: dict[str, Any]) -> Origin:
    url = body.get("url")
    if not isinstance(url, str):
        raise Refusal(400, "url must be text: http://HOST:PORT", "bad_engine")
    try:
        return Origin.parse(url)
    except UsageError as error:
        raise Refusal(400, str(error), "bad_engine") from error
