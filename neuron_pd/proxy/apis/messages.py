"""Anthropic's `/v1/messages`, as vLLM serves it."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from neuron_pd.proxy.apis.base import Alone, Api, Body, Reply, offer
from neuron_pd.proxy.apis.chat import plain
from neuron_pd.proxy.chain import Chain, assistant, encoded

TEMPLATE_FIELDS = ("system", "tools", "thinking", "output_config", "chat_template_kwargs")
THOUGHTS = ("thinking", "redacted_thinking")


def alone(body: Body) -> Alone | None:
    return None


def chain(scope: "blake2b", body: Body) -> Chain | None:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None
    scope.update(encoded([_unmarked(body[name]) for name in TEMPLATE_FIELDS if name in body]))
    links = Chain(scope)
    for message in messages:
        links.add(canonical(message), reply=isinstance(message, Mapping) and message.get("role") == "assistant")
    return links


def canonical(message: Any) -> bytes:
    """A message as its meaning; a reply without its thoughts, which clients may leave out."""
    if not isinstance(message, Mapping):
        return encoded(message)
    if message.get("role") != "assistant":
        return encoded({"role": message.get("role"), "content": plain(_unmarked(message.get("content")))})
    return said(message.get("content"))


def said(content: Any) -> bytes:
    """An assistant's content."""
    if not isinstance(content, list):
        return assistant(plain(content), ())
    blocks = [block for block in content if isinstance(block, Mapping) and block.get("type") not in THOUGHTS]
    calls = [(block.get("name"), block.get("input")) for block in blocks if block.get("type") == "tool_use"]
    return assistant("".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text"), calls)


def _unmarked(content: Any) -> Any:
    """Blocks without the cache marks, which clients move from turn to turn."""
    if not isinstance(content, list):
        return content
    return [
        {name: value for name, value in block.items() if name != "cache_control"}
        if isinstance(block, Mapping)
        else block
        for block in content
    ]


def whole(answer: Body) -> Reply:
    finished = isinstance(answer.get("stop_reason"), str)
    return Reply(finished, [said(answer.get("content"))] if finished else None, params=offer(answer))


class Blocks:
    """The content blocks of a stream."""

    def __init__(self) -> None:
        self._reply = Reply()
        self._blocks: dict[int, dict[str, Any]] = {}

    def event(self, event: Any) -> None:
        self._reply.params = offer(event) or self._reply.params
        kind = event["type"]
        if kind == "content_block_start":
            self._blocks[event["index"]] = {**event["content_block"], "json": ""}
        elif kind == "content_block_delta":
            self._delta(self._blocks[event["index"]], event["delta"])
        elif kind == "message_delta" and event["delta"].get("stop_reason") is not None:
            self._reply.finished = True

    def reply(self) -> Reply:
        blocks = [{**block, "input": block["json"] or block.get("input")} for _, block in sorted(self._blocks.items())]
        self._reply.said = [said(blocks)]
        return self._reply

    @staticmethod
    def _delta(block: dict[str, Any], delta: Body) -> None:
        if delta["type"] == "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
        elif delta["type"] == "input_json_delta":
            block["json"] += delta["partial_json"]


API = Api(
    path="/v1/messages",
    caps=("max_tokens",),
    not_for_prefill=frozenset(),
    finish=(b'"stop_reason":"', b'"stop_reason": "'),
    alone=alone,
    chain=chain,
    whole=whole,
    reader=Blocks,
)
