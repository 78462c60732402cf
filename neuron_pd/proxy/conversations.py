"""Which conversation a request belongs to.

Where the client names it (`conversation_id` in the body, or a header that agents send), the name decides. Otherwise the
transcript does: its messages are hashed one after another, and a turn that extends a finished one finds it by the
longest chain that is stored. A wrong guess costs a round trip, never a wrong answer: P verifies tokens.

Every key is scoped by tenant (the API key), model and cache salt.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from neuron_pd.proxy.http import Request
from neuron_pd.proxy.store import KEY_BYTES

# In this order; the first that is present decides. Trace and request ids are never among them.
SESSION_HEADERS = (
    b"x-session-id",
    b"x-claude-code-agent-id",
    b"x-claude-code-session-id",
    b"thread-id",
    b"session-id",
    b"x-session-affinity",
    b"x-litellm-session-id",
    b"x-dynamo-session-id",
)
DYNAMO, FINAL = b"x-dynamo-session-id", b"-Final"
MAX_ID_BYTES = 1024
# Completions prompts are hashed in steps of this many characters or tokens.
STEP = 256
# What the template renders besides the messages.
TEMPLATE_FIELDS = ("tools", "documents", "chat_template", "chat_template_kwargs", "reasoning_effort")

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Keys of one request. `lookup`: where an earlier turn may be stored, best first. `source` is a metric label.

    `needs_reply`: the keys of the finished turn depend on the reply, so it must be collected. `final`: the session
    ends.
    """

    source: str
    lookup: Sequence[bytes]
    chain: "Chain | None" = None
    final: bool = False

    @property
    def needs_reply(self) -> bool:
        return self.chain is not None

    def finished(self, reply: "Message | str | None") -> list[bytes]:
        """Where to store this turn, now that it ended with `reply` (None where it was not collected)."""
        if self.chain is None:
            return list(self.lookup)
        return self.chain.finished(reply)


NOBODY = Conversation("none", ())


class Chain:
    """The running hash of a transcript."""

    def __init__(self, state: "blake2b") -> None:
        self._state = state
        self.keys: list[bytes] = []

    def add(self, part: bytes) -> None:
        self._state.update(len(part).to_bytes(8, "little") + part)
        self.keys.append(self._state.digest())

    def finished(self, reply: "Message | str | None") -> list[bytes]:
        """The chain with the reply, and the one without: a client that resends the reply altered finds the latter."""
        with_reply = self._extended(reply)
        return [*with_reply, *self.keys[-1:]]

    def _extended(self, reply: "Message | str | None") -> list[bytes]:
        if not isinstance(reply, Mapping):
            return []
        state = self._state.copy()
        part = canonical_message(reply)
        state.update(len(part).to_bytes(8, "little") + part)
        return [state.digest()]


class TextChain(Chain):
    """The same over a completions prompt, in whole steps; the rest of it waits for what follows."""

    def __init__(self, state: "blake2b", prompt: str | list[int]) -> None:
        super().__init__(state)
        self._text = isinstance(prompt, str)
        self._rest = self._add_steps(prompt)

    def _add_steps(self, prompt: str | list[int]) -> str | list[int]:
        whole = len(prompt) - len(prompt) % STEP
        for start in range(0, whole, STEP):
            self.add(_encoded(prompt[start : start + STEP]))
        return prompt[whole:]

    def _extended(self, reply: "Message | str | None") -> list[bytes]:
        if not isinstance(reply, str) or not isinstance(self._rest, str):
            return []
        longer = TextChain(self._state.copy(), self._rest + reply)
        return longer.keys[-1:]


def identify(request: Request, body: Message) -> Conversation:
    """The conversation of a chat or completions request."""
    scope = _scope(request, body)
    named = _named(request, body)
    if named is not None:
        source, name = named
        final = source == "header" and request.get(DYNAMO) is not None and name.endswith(FINAL)
        if final:
            name = name[: -len(FINAL)]
        scope.update(b"id" + name)
        return Conversation(source, (scope.digest(),), final=final)
    chain = _chain(scope, body)
    if chain is None or not chain.keys:
        return NOBODY
    return Conversation("transcript", chain.keys[::-1], chain)


def canonical_message(message: Message) -> bytes:
    """A message as its meaning: clients resend replies with fields left out, added, or set to null."""
    if message.get("role") != "assistant":
        return _encoded(message)
    calls = [_canonical_call(call) for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    return _encoded({"role": "assistant", "content": _plain(message.get("content")), "tool_calls": calls})


def _scope(request: Request, body: Message) -> "blake2b":
    tenant = request.get(b"authorization") or request.get(b"x-api-key") or b""
    state = blake2b(digest_size=KEY_BYTES, person=b"neuron-pd conv")
    for part in (
        tenant,
        str(body.get("model") or "").encode("utf-8", "surrogatepass"),
        _encoded(body.get("cache_salt")),
    ):
        state.update(len(part).to_bytes(8, "little") + part)
    return state


def _named(request: Request, body: Message) -> tuple[str, bytes] | None:
    given = body.get("conversation_id")
    if isinstance(given, str | int) and given != "":
        return "body", str(given).encode("utf-8", "surrogatepass")[:MAX_ID_BYTES]
    for header in SESSION_HEADERS:
        value = request.get(header)
        if value:
            return "header", value[:MAX_ID_BYTES]
    return None


def _chain(scope: "blake2b", body: Message) -> Chain | None:
    messages = body.get("messages")
    if isinstance(messages, list):
        scope.update(_encoded([body[name] for name in TEMPLATE_FIELDS if name in body]))
        return _message_chain(scope, messages)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)):
        return TextChain(scope, prompt)
    return None


def _message_chain(scope: "blake2b", messages: Iterable[Any]) -> Chain:
    chain = Chain(scope)
    for message in messages:
        chain.add(canonical_message(message) if isinstance(message, Mapping) else _encoded(message))
    return chain


def _canonical_call(call: Message) -> list[Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return [call.get("type")]
    arguments = function.get("arguments")
    try:
        parsed = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        parsed = arguments
    return [function.get("name"), parsed]


def _plain(content: Any) -> Any:
    """Text content as text: a list of text parts is the same as their concatenation, and none the same as empty."""
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return content


def _encoded(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(value, sort_keys=True).encode()
