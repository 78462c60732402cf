"""Recorded conversations: `{id, messages}` files (vLLM's multi-turn benchmark) and ShareGPT's.

Only what people said is replayed; an answer of the file says how long a reply to ask for.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuron_pd.bench.text import Ruler
from neuron_pd.bench.workloads.dialogue import Dialogue, Message, Sizes, Turn
from neuron_pd.errors import UsageError

SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}


class Conversations:
    """The conversations of one file; those in which nobody but the model speaks are left out."""

    sized = timed = False

    def __init__(self, items: Sequence[Any], path: Path) -> None:
        """UsageError for a file that holds something else, or no conversation."""
        read = [_messages(item, f"{path}, conversation {number}") for number, item in enumerate(items, start=1)]
        self._conversations = [messages for messages in read if any(m["role"] != "assistant" for m in messages)]
        if not self._conversations:
            raise UsageError(f"{path} holds no conversation in which a user speaks")

    async def dialogues(self, ruler: Ruler, key: str, sizes: Sizes, count: int | None) -> list[Dialogue]:
        """The first ones; `sizes.reply` is for a question that the file leaves unanswered."""
        return [await _dialogue(messages, ruler, sizes.reply) for messages in self._conversations[:count]]


async def _dialogue(messages: Sequence[Message], ruler: Ruler, reply_tokens: int) -> Dialogue:
    turns: list[Turn] = []
    said: list[Message] = []
    for message in messages:
        if message["role"] != "assistant":
            said.append(message)
        elif said:
            turns.append(Turn(tuple(said), max(1, await ruler.tokens(message["content"]))))
            said = []
    if said and said[-1]["role"] != "system":
        turns.append(Turn(tuple(said), reply_tokens))
    return Dialogue(tuple(turns))


def _messages(item: Any, where: str) -> list[Message]:
    if isinstance(item, Mapping) and isinstance(item.get("messages"), list):
        found = [(entry.get("role"), entry.get("content")) for entry in item["messages"] if isinstance(entry, Mapping)]
    elif isinstance(item, Mapping) and isinstance(item.get("conversations"), list):
        entries = [entry for entry in item["conversations"] if isinstance(entry, Mapping)]
        found = [(SHAREGPT_ROLES.get(str(entry.get("from"))), entry.get("value")) for entry in entries]
    else:
        raise UsageError(f"{where} has neither `messages` nor `conversations`")
    if not all(isinstance(role, str) and isinstance(content, str) for role, content in found):
        raise UsageError(f"{where} has a message without a role or without text")
    return [{"role": role, "content": content} for role, content in found]
