"""Whether a request goes on from a finished turn, and how much of it is new.

Where D may serve turns alone, the first half of a turn's handle is a digest of everything that its prompt was rendered
from. The next request goes on from it when what precedes its last assistant message has the same digest; what follows
that message is new. Without that, D would be asked to compute an edited history.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import orjson

MARK_BYTES = 8  # of a handle's 16: the rest keeps it unique
RENDERED = (
    "model",
    "system",
    "instructions",
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
)

Body = Mapping[str, Any]


def mark(body: Body) -> str | None:
    """The digest of a request's transcript in hex; None for one without messages."""
    messages = _messages(body)
    return None if messages is None else _digest(body, messages)


def added(body: Body, handle: str) -> bytes | None:
    """What the request adds to the turn that `handle` names, as JSON; None when it does not go on from it."""
    messages = _messages(body)
    last = None if messages is None else _last_reply(messages)
    if messages is None or last is None or last + 1 == len(messages):
        return None
    if _digest(body, messages[:last]) != handle[: 2 * MARK_BYTES]:
        return None
    return _encoded(messages[last + 1 :])


def _messages(body: Body) -> list[Any] | None:
    found = body.get("messages") if "messages" in body else body.get("input")
    return found if isinstance(found, list) else None


def _last_reply(messages: list[Any]) -> int | None:
    """The first of the assistant's messages at the end: a reply and its tool calls may be several items."""
    for index in reversed(range(len(messages))):
        message = messages[index]
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            return index
    return None


def _digest(body: Body, messages: list[Any]) -> str:
    fixed = [body.get(name) for name in RENDERED]
    return blake2b(_encoded([fixed, messages]), digest_size=MARK_BYTES).hexdigest()


def _encoded(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(value, sort_keys=True).encode()
