"""Which conversation a request belongs to.

Where the client names it (`conversation_id` in the body, a header that agents send, the Responses API's fields), the
name decides. Otherwise the transcript does: its messages are hashed one after another, and a turn that extends a
finished one finds it by the longest chain that is stored. A wrong guess costs a round trip, never a wrong answer: P
verifies tokens.

Every key is scoped by tenant, model (an adapter is a model) and cache salt, and hashed with a secret where the proxies
share one.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from neuron_pd.proxy.apis import Api, Reply
from neuron_pd.proxy.chain import Chain, encoded
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
SESSION, END = b"x-neuron-pd-session", b"end"
# Shared by conversations, sometimes by a whole account: not which conversation it is. The first says that prompts begin
# alike, so that another's KV may be offered to P; the second only who asks, which is good for the choice of D.
CACHE_KEY, USER = "prompt_cache_key", "user"
MAX_ID_BYTES = 1024


class Scope(NamedTuple):
    """Whose conversations: nothing is found from another scope. `secret` keys the digests."""

    tenant: bytes
    model: str = ""
    salt: Any = None
    secret: bytes = b""

    def key(self, kind: bytes, name: bytes) -> bytes:
        state = self.state()
        state.update(kind + b"\0" + name)
        return state.digest()

    def state(self) -> "blake2b":
        """The hash of the scope, to be continued."""
        return _state(self.tenant, self.model, encoded(self.salt), self.secret).copy()


@lru_cache(maxsize=256)
def _state(tenant: bytes, model: str, salt: bytes, secret: bytes) -> "blake2b":
    state = blake2b(digest_size=KEY_BYTES, person=b"neuron-pd conv", key=secret[:64])
    for part in (tenant, model.encode("utf-8", "surrogatepass"), salt):
        state.update(len(part).to_bytes(8, "little") + part)
    return state


class Hint(NamedTuple):
    """Where a conversation that is not known may go. `prefix`: others under this key begin alike."""

    key: bytes
    prefix: bool


class Conversation(NamedTuple):
    """Keys of one request. `lookup`: where an earlier turn may be stored, best first. `source` is a metric label.

    `final`: the session ends with this turn.
    """

    source: str
    lookup: Sequence[bytes]
    scope: Scope
    chain: Chain | None = None
    final: bool = False
    hint: "Hint | None" = None

    @property
    def needs_reply(self) -> bool:
        """Whether the keys of the finished turn depend on the reply, so that it must be collected."""
        return self.chain is not None

    def finished(self, reply: Reply) -> list[bytes]:
        """Where to store this turn, now that it ended."""
        keys = [response_key(self.scope, reply.id)] if reply.id else []
        if self.chain is not None:
            keys += self.chain.finished(reply.said)
        elif self.source != "response":
            keys += self.lookup[-1:]
        return keys if self.hint is None else [*keys, self.hint.key]

    def outgrown(self) -> list[bytes]:
        """Keys of turns that this one makes too old to keep."""
        return self.chain.outgrown() if self.chain is not None else []


def identify(request: Request, body: Mapping[str, Any], api: Api, scope: Scope) -> Conversation:
    """The conversation of a request for generated text."""
    final = (request.get(SESSION) or b"").lower() == END
    hint = _hint(body, scope)
    previous = body.get("previous_response_id")
    before = [response_key(scope, previous)] if isinstance(previous, str) and previous else []
    named = _named(request, body)
    if named is not None:
        source, name = named
        if source == "header" and name.endswith(FINAL) and request.get(DYNAMO) == name:
            name, final = name[: -len(FINAL)], True
        return Conversation(source, [*before, scope.key(b"id", name)], scope, final=final, hint=hint)
    if before:
        return Conversation("response", before, scope, final=final, hint=hint)
    chain = api.chain(scope.state(), body)
    if chain is None or not chain.keys:
        return Conversation("none", (), scope, final=final, hint=hint)
    return Conversation("transcript", chain.lookup, scope, chain, final, hint)


def response_key(scope: Scope, name: str) -> bytes:
    """Where a turn of the Responses API is stored by its id, whatever its model: later requests name only that."""
    owner = Scope(scope.tenant, secret=scope.secret)
    return owner.key(b"response", name.encode("utf-8", "surrogatepass")[:MAX_ID_BYTES])


def _named(request: Request, body: Mapping[str, Any]) -> tuple[str, bytes] | None:
    given = body.get("conversation_id")
    if isinstance(given, str | int) and given != "":
        return "body", _name(given)
    for header in SESSION_HEADERS:
        value = request.get(header)
        if value:
            return "header", value[:MAX_ID_BYTES]
    given = body.get("conversation")
    if isinstance(given, Mapping):
        given = given.get("id")
    return ("body", _name(given)) if isinstance(given, str) and given else None


def _name(given: str | int) -> bytes:
    return str(given).encode("utf-8", "surrogatepass")[:MAX_ID_BYTES]


def _hint(body: Mapping[str, Any], scope: Scope) -> Hint | None:
    for field in (CACHE_KEY, USER):
        value = body.get(field)
        if isinstance(value, str) and value:
            return Hint(scope.key(field.encode(), _name(value)), prefix=field == CACHE_KEY)
    return None
