"""The control path on vLLM's API server: an ASGI middleware in front of the OpenAI application.

Guard: with a control token, requests must carry it; without one but with vLLM's API key, that key as a bearer token;
with neither, only loopback is answered. Compared in constant time. No address is ever taken from a request.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any

from neuron_pd.connector import compat
from neuron_pd.connector.streaming import install
from neuron_pd.core.control import (
    ACQUIRE,
    INFO,
    MAX_BODY_BYTES,
    MAX_HANDLE_CHARS,
    PREFIX,
    RELEASE,
    RENEW,
    STATS,
    TOKEN_HEADER,
    AcquireMiss,
    control_token,
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

METHODS = {INFO: "GET", STATS: "GET", ACQUIRE: "POST", RENEW: "POST", RELEASE: "POST"}


class Refused(Exception):
    """A control request that is answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ControlPath:
    """`--middleware neuron_pd.connector.control.ControlPath`."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app
        self.token = control_token()
        install()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self.app(scope, receive, send)
            return
        try:
            status, body = await self._answer(scope, receive)
        except Refused as refusal:
            status, body = refusal.status, {"error": str(refusal)}
        except TimeoutError:
            status, body = 504, {"error": "the engine did not answer in time"}
        await _send_json(send, status, body)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, Any]]:
        self._guard(scope)
        path = scope["path"]
        if path not in METHODS:
            raise Refused(404, f"no such control request; there are {', '.join(METHODS)}")
        if scope["method"] != METHODS[path]:
            raise Refused(405, f"{path} takes {METHODS[path]}")
        argument = "" if METHODS[path] == "GET" else _argument(path, await _body(receive))
        answers = await _ask(scope["app"].state.engine_client, path.removeprefix(PREFIX), argument)
        return _combine(path, answers)

    def _guard(self, scope: Scope) -> None:
        headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        if self.token:
            given, wanted = headers.get(TOKEN_HEADER, b""), self.token.encode()
        elif keys := _api_keys(scope):
            given = headers.get("authorization", b"").removeprefix(b"Bearer ")
            wanted = next((key for key in keys if hmac.compare_digest(given, key)), keys[0])
        elif _is_loopback(scope):
            return
        else:
            raise Refused(401, "no control token is set on this engine, so it answers loopback only")
        if not hmac.compare_digest(given, wanted):
            raise Refused(401, "wrong or missing control token")


def _api_keys(scope: Scope) -> list[bytes]:
    keys = getattr(getattr(scope["app"].state, "args", None), "api_key", None) or []
    return [key.encode() for key in ([keys] if isinstance(keys, str) else keys) if key]


def _is_loopback(scope: Scope) -> bool:
    client = scope.get("client")
    try:
        return client is not None and ip_address(client[0]).is_loopback
    except ValueError:
        return False


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the client left")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise Refused(413, f"a control request has at most {MAX_BODY_BYTES} bytes")
        if not message.get("more_body"):
            return body


def _argument(path: str, body: bytes) -> str:
    """The handle or lease that a request names."""
    try:
        fields = json.loads(body)
    except ValueError:
        raise Refused(400, "the body must be a JSON object") from None
    names = ("handle",) if path == ACQUIRE else ("lease", "handle")
    value = next((fields[name] for name in names if name in fields), None) if isinstance(fields, dict) else None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_HANDLE_CHARS:
        raise Refused(400, f"the body needs {' or '.join(names)}: text of 1 to {MAX_HANDLE_CHARS} characters")
    return value


async def _ask(engine_client: Any, verb: str, argument: str) -> list[Any]:
    try:
        return await compat.call_engines(engine_client, verb, argument)
    except TimeoutError:
        raise
    except Exception as error:
        raise Refused(503, f"the engine cannot answer: {error}") from error


def _combine(path: str, answers: list[Any]) -> tuple[int, dict[str, Any]]:
    """One answer from all data-parallel ranks: the rank that has the record, or sums."""
    if path in (ACQUIRE, RENEW):
        for answer in answers:
            if "reason" not in answer:
                return 200, answer
        reasons = [answer["reason"] for answer in answers]
        known = [reason for reason in reasons if reason != AcquireMiss.UNKNOWN_HANDLE]
        return 404, {"reason": known[0] if known else AcquireMiss.UNKNOWN_HANDLE}
    if path == RELEASE:
        return 200, {"released": sum(answers)}
    if path == INFO:
        return 200, {**answers[0], "engine_ids": [answer["engine_id"] for answer in answers]}
    names = sorted({name for answer in answers for name in answer})
    return 200, {name: sum(answer.get(name, 0) for answer in answers) for name in names}


async def _send_json(send: Send, status: int, body: dict[str, Any]) -> None:
    encoded = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(encoded)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": encoded})
