"""Request bodies: what the client asked for, what P is sent, what D is sent.

P is to build the prompt's KV and generate one token: not streamed, one choice, capped at 1. D gets exactly what the
client sent, plus `kv_transfer_params`: its bytes are the client's own, with the field put in before the closing brace.
"""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from neuron_pd.proxy.apis import Alone, Api
from neuron_pd.proxy.errors import Refusal

Body = dict[str, Any]

TRANSFER = "kv_transfer_params"
CONVERSATION = "conversation_id"
# Fields through which a client could name addresses or blocks that engines act on.
FORBIDDEN = (TRANSFER, "ec_transfer_params")
XARGS = "vllm_xargs"  # vLLM merges them with the fields above
CLIENT_ONLY = frozenset((CONVERSATION, *FORBIDDEN))


def load(raw: bytes) -> tuple[Any, bool]:
    """Parse a body, and say whether its bytes are plain JSON in UTF-8; Refusal 400 when it is not JSON.

    Like the engines' parser it takes lone surrogates and NaN, and other encodings of Unicode.
    """
    try:
        return orjson.loads(raw), True
    except orjson.JSONDecodeError:
        try:
            return json.loads(raw), False
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"the request's body is not JSON: {error}", "invalid_json") from error


MAX_ANSWER = 64 * 1024 * 1024  # bytes of one that is read whole


def json_object(raw: bytes) -> Mapping[str, Any]:
    """An engine's answer; an empty one where it is not a JSON object."""
    try:
        parsed = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def dump(body: Any) -> bytes:
    """JSON bytes; what orjson refuses (lone surrogates, huge integers) is written escaped, as Python does."""
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:
        return json.dumps(body).encode()


class Generate:
    """A request for generated text: the parsed body, and what each engine is sent."""

    __slots__ = ("_raw", "_sent", "api", "body", "stream")

    def __init__(self, api: Api, raw: bytes) -> None:
        """Refusal 400 for what is not a JSON object, or names transfer parameters."""
        body, as_sent = load(raw)
        if not isinstance(body, dict):
            raise Refusal(400, "the request's body must be a JSON object", "invalid_json")
        refuse_transfer_params(body)
        self.api = api
        self.body = self._sent = body
        self._raw: bytes | None = raw if as_sent else None
        if not CLIENT_ONLY.isdisjoint(body):
            self._sent = dict(body)
            for name in CLIENT_ONLY:
                self._sent.pop(name, None)
            self._raw = None  # to be written anew
        self.stream = body.get("stream") is True

    @property
    def model(self) -> str:
        return str(self.body.get("model") or "")

    def alone(self) -> Alone | None:
        """Why this request must be served by one engine; None when P and D can share it."""
        for cap in self.api.caps:
            value = self.body.get(cap)
            if value == 0 and value is not False:
                return Alone.NO_OUTPUT
        return self.api.alone(self.body)

    def for_prefill(self, params: Mapping[str, Any]) -> bytes:
        api = self.api
        body = {**self._sent, **api.for_prefill, "stream": False, api.caps[0]: 1, TRANSFER: params}
        for name in api.not_for_prefill:
            body.pop(name, None)
        for name in (*api.caps, "n"):
            if name in body:
                body[name] = 1
        return dump(body)

    def for_decode(self, params: Mapping[str, Any] | None) -> bytes:
        """What the client sent, with `params` where there are any."""
        raw = self._raw
        if raw is None:
            raw = dump(self._sent)
        if params is None:
            return raw
        raw = raw.rstrip()
        comma = b"," if self._sent else b""
        return b'%b%b"kv_transfer_params":%b}' % (raw[:-1], comma, dump(params))


def refuse_transfer_params(body: Mapping[str, Any]) -> None:
    """Refusal 400 when a client names transfer parameters: no address is taken from a client."""
    xargs = body.get(XARGS)
    for name in FORBIDDEN:
        if body.get(name) is not None or (xargs and isinstance(xargs, Mapping) and name in xargs):
            raise Refusal(400, f"{name} is set by the proxy and cannot be given by a client", "forbidden_field")
