"""Generated conversations, of seeded words: plain questions, and what an agent's sessions look like."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from neuron_pd.bench.text import Ruler
from neuron_pd.bench.workloads.dialogue import Dialogue, Message, Sizes, Turn

Make = Callable[[Ruler, str, Sizes], Awaitable[Dialogue]]


@dataclass(frozen=True, slots=True)
class Synthetic:
    """As many conversations of one kind as are asked for, each of words of its own."""

    make: Make
    sized: bool = True
    timed: bool = False

    async def dialogues(self, ruler: Ruler, key: str, sizes: Sizes, count: int | None) -> list[Dialogue]:
        return [await self.make(ruler, f"{key}/{index}", sizes) for index in range(count or 1)]


async def plain(ruler: Ruler, key: str, sizes: Sizes) -> Dialogue:
    """One long question, then short ones."""
    turns = []
    for turn in range(1, sizes.turns + 1):
        tokens = sizes.length - ruler.overhead if turn == 1 else sizes.user
        turns.append(Turn((_message("user", await ruler.text(f"{key}/{turn}", max(1, tokens))),), sizes.reply))
    return Dialogue(tuple(turns))


SYSTEM_SHARE, TOOLS_SHARE = 0.5, 0.2  # of the first prompt
SUMMARY = "Summary of the conversation so far: "
# What follows the first question, over and over. A fork goes back two turns; a compaction starts again from a summary.
AGENT_TURNS = ("tool result", "tool result", "question", "fork", "tool result", "compaction")
TOOLS = {
    "read_file": "Read a file of the working copy and return its lines.",
    "search": "Search the working copy for a pattern.",
    "run_command": "Run a command in the sandbox and return its output.",
    "edit_file": "Replace a range of lines of a file.",
}


async def agent(ruler: Ruler, key: str, sizes: Sizes) -> Dialogue:
    """An agent's session: a system prompt and tools, tool results, a branch tried from an earlier point, a history
    that is replaced by a summary, and reasoning that does not come back in the history.

    Tool results are twice as long as questions. The first half of a reply counts as reasoning where a person speaks
    next; while tools are being called, templates keep it.
    """
    system = await ruler.text(f"{key}/system", int(sizes.length * SYSTEM_SHARE))
    tools = [await _tool(ruler, key, name, int(sizes.length * TOOLS_SHARE) // len(TOOLS)) for name in TOOLS]
    rest = sizes.length - ruler.overhead - sum([await ruler.tokens(json.dumps(tool)) for tool in tools])
    question = await ruler.text(f"{key}/1", max(1, rest - await ruler.tokens(system)))
    opening = (_message("system", system), _message("user", question))
    turns = [Turn(opening, sizes.reply, note="question", reasoning=_thought(2, sizes))]
    for number in range(2, sizes.turns + 1):
        turns.append(await _agent_turn(ruler, f"{key}/{number}", number, opening[0], sizes))
    return Dialogue(tuple(turns), tuple(tools))


async def _agent_turn(ruler: Ruler, key: str, number: int, system: Message, sizes: Sizes) -> Turn:
    kind, thought = _kind(number), _thought(number + 1, sizes)
    if kind == "tool result":
        result = {"tool_call_id": f"call-{number}", **_message("tool", await ruler.text(key, 2 * sizes.user))}
        return Turn((result,), sizes.reply, note=kind, reasoning=thought)
    question = _message("user", await ruler.text(key, sizes.user))
    if kind == "compaction":
        summary = _message("user", SUMMARY + await ruler.text(f"{key}/summary", max(1, sizes.length // 4)))
        return Turn((system, summary, question), sizes.reply, after=0, note=kind, reasoning=thought)
    after = max(1, number - 3) if kind == "fork" else None
    return Turn((question,), sizes.reply, after=after, note=kind, reasoning=thought)


def _kind(number: int) -> str:
    return AGENT_TURNS[(number - 2) % len(AGENT_TURNS)]


def _thought(following: int, sizes: Sizes) -> int:
    """Pieces of a reply to leave out of the history, by the kind of the turn that follows it."""
    return 0 if _kind(following) == "tool result" else sizes.reply // 2


async def _tool(ruler: Ruler, key: str, name: str, tokens: int) -> dict[str, Any]:
    bare = _function(name, TOOLS[name])
    more = tokens - await ruler.tokens(json.dumps(bare))
    text = f" {await ruler.text(f'{key}/{name}', more)}" if more > 0 else ""
    return _function(name, TOOLS[name] + text)


def _function(name: str, description: str) -> dict[str, Any]:
    arguments = {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": arguments}}


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
