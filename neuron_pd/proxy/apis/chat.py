"""`/v1/chat/completions`."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from neuron_pd.proxy.apis.base import Alone, Api, Body, Reply, more_than_one, offer
from neuron_pd.proxy.chain import Chain, assistant, encoded

# What the template renders besides the messages.
TEMPLATE_FIELDS = ("tools", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort")


def alone(body: Body) -> Alone | None:
    if body.get("use_beam_search"):
        return Alone.BEAM_SEARCH
    if more_than_one(body.get("n")) or more_than_one(body.get("best_of")):
        return Alone.SEVERAL_CHOICES
    if body.get("prompt_logprobs") is not None:
        return Alone.PROMPT_LOGPROBS
    if body.get("echo"):
        return Alone.ECHO
    return Alone.TRUNCATION if body.get("truncate_prompt_tokens") is not None else None


def chain(scope: "blake2b", body: Body) -> Chain | None:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None
    scope.update(encoded([body[name] for name in TEMPLATE_FIELDS if name in body]))
    links = Chain(scope)
    for message in messages:
        links.add(canonical(message), reply=isinstance(message, Mapping) and message.get("role") == "assistant")
    return links


def canonical(message: Any) -> bytes:
    """A message as its meaning."""
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return encoded(message)
    calls = [_call(call) for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    return assistant(plain(message.get("content")), calls)


def plain(content: Any, kinds: tuple[str, ...] = ("text",)) -> Any:
    """Text content as text: a list of text parts is the same as their concatenation, and none the same as empty."""
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") in kinds for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return content


def whole(answer: Body) -> Reply:
    choice = first_choice(answer)
    message = choice.get("message")
    said = [canonical({**message, "role": "assistant"})] if isinstance(message, Mapping) else None
    return Reply(isinstance(choice.get("finish_reason"), str), said, params=offer(answer))


def first_choice(answer: Body) -> Mapping[str, Any]:
    try:
        choice = answer["choices"][0]
    except (KeyError, TypeError, IndexError):
        return {}
    return choice if isinstance(choice, Mapping) else {}


class Deltas:
    """The deltas of the first choice."""

    def __init__(self) -> None:
        self._reply = Reply()
        self._content: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}

    def event(self, event: Any) -> None:
        self._reply.params = offer(event) or self._reply.params
        for choice in event["choices"]:
            if not choice.get("index"):
                self._choice(choice)

    def reply(self) -> Reply:
        calls = [(call["name"], call["arguments"]) for _, call in sorted(self._calls.items())]
        self._reply.said = [assistant("".join(self._content), calls)]
        return self._reply

    def _choice(self, choice: Mapping[str, Any]) -> None:
        if choice.get("finish_reason") is not None:
            self._reply.finished = True
        delta = choice.get("delta") or {}
        if delta.get("content"):
            self._content.append(delta["content"])
        for call in delta.get("tool_calls") or ():
            known = self._calls.setdefault(call.get("index") or 0, {"name": "", "arguments": ""})
            function = call.get("function") or {}
            known["name"] += function.get("name") or ""
            known["arguments"] += function.get("arguments") or ""


def _call(call: Body) -> tuple[Any, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call.get("type"), None
    return function.get("name"), function.get("arguments")


FINISH = (b'"finish_reason":"', b'"finish_reason": "')
API = Api(
    path="/v1/chat/completions",
    caps=("max_tokens", "max_completion_tokens", "max_output_tokens"),
    not_for_prefill=frozenset(("stream_options", "min_tokens", "best_of")),
    finish=FINISH,
    alone=alone,
    chain=chain,
    whole=whole,
    reader=Deltas,
)
