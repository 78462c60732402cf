"""Request bodies: what the client asked for, what P is sent, what D is sent.

P is to build the prompt's KV and generate one token: not streamed, one choice, capped at 1. D gets exactly what the
client sent, plus `kv_transfer_params`: its bytes are the client's own, with the field put in before the closing brace.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import orjson

from neuron_pd.proxy.errors import Refusal

Body = dict[str, Any]

TRANSFER = "kv_transfer_params"
CONVERSATION = "conversation_id"
# Fields through which a client could name addresses or blocks that engines act on.
FORBIDDEN = (TRANSFER, "ec_transfer_params")
CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
NOT_FOR_PREFILL = ("stream_options", "min_tokens", "best_of")


class Alone(StrEnum):
    """Why a request is served by one engine, without a hand-off."""

    SEVERAL_PROMPTS = "several_prompts"  # their block lists would come back as one
    SEVERAL_CHOICES = "several_choices"  # each choice would read, and the first to finish would free, P's blocks
    PROMPT_LOGPROBS = "prompt_logprobs"  # they are computed during prefill, which D would skip
    ECHO = "echo"
    TRUNCATION = "truncate_prompt_tokens"  # the engine may cut the prompt by the cap, which differs on P
    EMBEDS = "prompt_embeds"  # no token ids to verify
    NO_OUTPUT = "no_output"  # a cap of 0


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


def dump(body: Any) -> bytes:
    """JSON bytes; what orjson refuses (lone surrogates, huge integers) is written escaped, as Python does."""
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:
        return json.dumps(body).encode()


class Generate:
    """A request for generated text: the parsed body, and what each engine is sent."""

    __slots__ = ("_raw", "body", "stream")

    def __init__(self, raw: bytes) -> None:
        """Refusal 400 for what is not a JSON object, or names transfer parameters."""
        body, as_sent = load(raw)
        if not isinstance(body, dict):
            raise Refusal(400, "the request's body must be a JSON object", "invalid_json")
        refuse_transfer_params(body)
        self._raw: bytes | None = raw if as_sent else None
        for name in (*FORBIDDEN, CONVERSATION):
            if name in body:
                self._raw = None  # to be written anew, without it
        self.body: Body = body
        self.stream = body.get("stream") is True

    def alone(self) -> Alone | None:
        """Why this request must be served by one engine; None when P and D can share it."""
        body = self.body
        if body.get("prompt_embeds") is not None:
            return Alone.EMBEDS
        if _several(body.get("prompt")):
            return Alone.SEVERAL_PROMPTS
        if _more_than_one(body.get("n")) or _more_than_one(body.get("best_of")) or body.get("use_beam_search"):
            return Alone.SEVERAL_CHOICES
        if body.get("prompt_logprobs") is not None:
            return Alone.PROMPT_LOGPROBS
        if body.get("echo"):
            return Alone.ECHO
        if body.get("truncate_prompt_tokens") is not None:
            return Alone.TRUNCATION
        if any(body.get(cap) == 0 and body.get(cap) is not False for cap in CAPS):
            return Alone.NO_OUTPUT
        return None

    def for_prefill(self, params: Mapping[str, Any]) -> bytes:
        body = {
            name: value for name, value in self.body.items() if name not in NOT_FOR_PREFILL and name not in CLIENT_ONLY
        }
        body["stream"] = False
        for cap in CAPS[1:]:
            if cap in body:
                body[cap] = 1
        body["max_tokens"] = 1
        if "n" in body:
            body["n"] = 1
        body[TRANSFER] = params
        return dump(body)

    def for_decode(self, params: Mapping[str, Any] | None) -> bytes:
        """What the client sent, with `params` where there are any."""
        raw = self._raw
        if raw is None:
            raw = dump({name: value for name, value in self.body.items() if name not in CLIENT_ONLY})
        if params is None:
            return raw
        raw = raw.rstrip()
        comma = b"," if self.body else b""
        return b'%b%b"kv_transfer_params":%b}' % (raw[:-1], comma, dump(params))


CLIENT_ONLY = frozenset((CONVERSATION, *FORBIDDEN))


def refuse_transfer_params(body: Mapping[str, Any]) -> None:
    """Refusal 400 when a client names transfer parameters: no address is taken from a client."""
    for name in FORBIDDEN:
        if body.get(name) is not None:
            raise Refusal(400, f"{name} is set by the proxy and cannot be given by a client", "forbidden_field")


def _several(prompt: Any) -> bool:
    """Whether a completions `prompt` holds more than one: a list of texts or of token lists."""
    return isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list)


def _more_than_one(value: Any) -> bool:
    return isinstance(value, int) and value > 1
