"""OpenAI's `/v1/responses`."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from neuron_pd.proxy.apis.base import Alone, Api, Body, Reply, offer
from neuron_pd.proxy.apis.chat import plain
from neuron_pd.proxy.chain import Chain, assistant, encoded

TEMPLATE_FIELDS = ("instructions", "tools", "reasoning", "chat_template_kwargs")
TEXTS = ("input_text", "output_text", "text")
OURS = ("function", "custom")  # tools that the client calls
ENDS = ("completed", "incomplete")


def alone(body: Body) -> Alone | None:
    if body.get("previous_response_id") is not None:
        return Alone.PREVIOUS_RESPONSE
    if body.get("background"):
        return Alone.BACKGROUND
    tools = body.get("tools")
    if isinstance(tools, list) and any(isinstance(tool, Mapping) and tool.get("type") not in OURS for tool in tools):
        return Alone.ENGINE_TOOLS
    return None if body.get("truncation") in (None, "disabled") else Alone.TRUNCATION


def chain(scope: "blake2b", body: Body) -> Chain | None:
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or body.get("previous_response_id") is not None:
        return None
    scope.update(encoded([body[name] for name in TEMPLATE_FIELDS if name in body]))
    links = Chain(scope)
    for item in items:
        part, reply = canonical(item)
        if part is not None:
            links.add(part, reply)
    return links


def canonical(item: Any) -> tuple[bytes | None, bool]:
    """An item as its meaning, and whether it is part of a reply; None for thoughts, which clients may leave out."""
    if not isinstance(item, Mapping):
        return encoded(item), False
    kind, role = item.get("type", "message"), item.get("role")
    if kind == "reasoning":
        return None, True
    if kind == "function_call":
        return assistant("", [(item.get("name"), item.get("arguments"))]), True
    if kind == "message" and role is not None:
        content = plain(item.get("content"), TEXTS)
        reply = role == "assistant"
        return (assistant(content, ()) if reply else encoded({"role": role, "content": content})), reply
    return encoded({name: value for name, value in item.items() if name not in ("id", "status")}), False


def whole(answer: Body) -> Reply:
    finished = answer.get("status") in ENDS
    output, name = answer.get("output"), answer.get("id")
    said = [part for item in output if (part := canonical(item)[0]) is not None] if isinstance(output, list) else None
    return Reply(finished, said, name if isinstance(name, str) else "", offer(answer))


class Last:
    """The last event holds the whole response."""

    def __init__(self) -> None:
        self._reply = Reply()

    def event(self, event: Any) -> None:
        if event["type"] in ("response.completed", "response.incomplete"):
            self._reply = whole(event["response"])

    def reply(self) -> Reply:
        return self._reply


API = Api(
    path="/v1/responses",
    caps=("max_output_tokens",),
    not_for_prefill=frozenset(("stream_options", "background", "min_tokens")),
    for_prefill={"store": False},
    finish=(b'"type":"response.completed"', b'"type":"response.incomplete"'),
    alone=alone,
    chain=chain,
    whole=whole,
    reader=Last,
    always_read=True,
)
