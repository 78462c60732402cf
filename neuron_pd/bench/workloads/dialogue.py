"""What a client says in one conversation, turn by turn; what the server says goes in between as it comes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from neuron_pd.bench.text import Ruler

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: `add` is appended to the history, and a reply of `reply_tokens` is asked for.

    `after` names the turn, counted from 1, whose reply this one follows; None is the turn before, 0 the beginning: so a
    fork, or a history that was compacted. The first `reasoning` pieces of the reply are left out of the history, as
    chat templates do with what a model thought. `due` is when a trace sent it, seconds after its first request.
    """

    add: tuple[Message, ...]
    reply_tokens: int
    after: int | None = None
    note: str = ""
    reasoning: int = 0
    due: float | None = None


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation: its turns, and the tools that each of its requests names."""

    turns: tuple[Turn, ...]
    tools: tuple[Message, ...] = ()

    def first(self, turns: int) -> "Dialogue":
        """Its first turns; all of them for 0."""
        return replace(self, turns=self.turns[: turns or None])

    def within(self, tokens: int, chars_per_token: float) -> "Dialogue":
        """The turns that a model with room for so many tokens can take, as far as their text tells."""
        kept: list[Turn] = []
        used = 0.0
        for turn in self.turns:
            said = sum(len(message["content"]) for message in turn.add) / chars_per_token
            used = said + turn.reply_tokens + (0 if turn.after == 0 else used)
            if used > tokens:
                break
            kept.append(turn)
        return replace(self, turns=tuple(kept))


@dataclass(frozen=True, slots=True)
class Sizes:
    """In tokens: `length` of the first prompt, `user` of each later message, `reply` of each reply. `turns` 0 means all
    that a file has."""

    length: int
    turns: int
    user: int
    reply: int


class Workload(Protocol):
    """Where conversations come from.

    `sized`: their lengths are the sweep's, not their own. `timed`: their turns say when they are due.
    """

    @property
    def sized(self) -> bool: ...

    @property
    def timed(self) -> bool: ...

    async def dialogues(self, ruler: Ruler, key: str, sizes: Sizes, count: int | None) -> list[Dialogue]:
        """`count` conversations, the same for the same `key`; where it is None all that a file has, or one."""
        ...


class History:
    """The messages of a conversation as they come about: the dialogue's own, and the server's answers."""

    def __init__(self) -> None:
        self._after: list[list[Message]] = [[]]

    def request(self, turn: Turn) -> list[Message]:
        """The messages to send for the next turn."""
        at = len(self._after) - 1 if turn.after is None else turn.after
        return [*self._after[at], *turn.add]

    def answered(self, sent: Sequence[Message], turn: Turn, pieces: Sequence[str]) -> None:
        """The server's answer to `sent`, in the pieces in which it was streamed."""
        answer = "".join(pieces[min(turn.reasoning, max(0, len(pieces) - 1)) :])
        self._after.append([*sent, {"role": "assistant", "content": answer}])
