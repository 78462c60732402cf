"""The running hash of a transcript: one key after each part, so that a longer transcript holds the keys of a shorter.

Parts are what messages mean, not how they were written: clients resend replies with fields left out, added or null.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import orjson

# Completions prompts are hashed in steps of this many characters or tokens.
STEP = 256
# A turn is looked for among so many keys, the longest first: what was added since the last one is shorter.
MAX_LOOKUP = 1024
TURNS_KEPT = 4  # of a transcript, for branches; older ones are dropped as it goes on
_DROPPED_AT_ONCE = 4  # a turn may add several replies

Said = Sequence[bytes] | str | None
"""A reply as parts of a chain, or as text; None where it was not collected."""


class Chain:
    """Keys of the parts that were added. `replies`: for each reply, its first and last place among them."""

    def __init__(self, state: "blake2b") -> None:
        self._state = state
        self.keys: list[bytes] = []
        self._replies: list[tuple[int, int]] = []

    def add(self, part: bytes, reply: bool = False) -> None:
        self._state.update(len(part).to_bytes(8, "little") + part)
        place = len(self.keys)
        self.keys.append(self._state.digest())
        if not reply:
            return
        if self._replies and self._replies[-1][1] == place - 1:
            self._replies[-1] = self._replies[-1][0], place
        else:
            self._replies.append((place, place))

    @property
    def lookup(self) -> list[bytes]:
        """Where an earlier turn may be stored, the longest chain first."""
        return self.keys[: -MAX_LOOKUP - 1 : -1]

    def finished(self, said: Said) -> list[bytes]:
        """The chain with the reply, and the one without: a client that resends the reply altered finds the latter."""
        return [*self._extended(said), *self.keys[-1:]]

    def outgrown(self) -> list[bytes]:
        """Keys of turns so long ago that they may be forgotten."""
        old = self._replies[-TURNS_KEPT - _DROPPED_AT_ONCE + 1 : -TURNS_KEPT + 1]
        return [self.keys[place] for first, last in old for place in (first - 1, last) if place >= 0]

    def _extended(self, said: Said) -> list[bytes]:
        if said is None or isinstance(said, str):
            return []
        longer = Chain(self._state.copy())
        for part in said:
            longer.add(part)
        return longer.keys[-1:]


class TextChain(Chain):
    """The same over a completions prompt, in whole steps; the rest of it waits for what follows."""

    def __init__(self, state: "blake2b", prompt: str | list[int]) -> None:
        super().__init__(state)
        whole = len(prompt) - len(prompt) % STEP
        for start in range(0, whole, STEP):
            self.add(encoded(prompt[start : start + STEP]))
        self._rest = prompt[whole:]

    def _extended(self, said: Said) -> list[bytes]:
        if not isinstance(said, str) or not isinstance(self._rest, str):
            return []
        longer = TextChain(self._state.copy(), self._rest + said)
        return longer.keys[-1:]


def encoded(value: Any) -> bytes:
    """JSON with sorted keys."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(value, sort_keys=True).encode()


def assistant(text: Any, calls: Sequence[tuple[Any, Any]]) -> bytes:
    """A reply: its text, and its tool calls as (name, arguments), whatever API they came by."""
    return encoded({"role": "assistant", "content": text, "tool_calls": [[name, parsed(what)] for name, what in calls]})


def parsed(arguments: Any) -> Any:
    """A tool call's arguments as what their JSON says."""
    try:
        return orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        return arguments
