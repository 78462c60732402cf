import json

import pytest

from neuron_pd.bench.text import Ruler
from neuron_pd.bench.workloads import Dialogue, Sizes, workload


async def words(text: str) -> int:
    return len(text.split())


RULER = Ruler(chars_per_token=5.0, overhead=3, count=words)
SIZES = Sizes(length=800, turns=8, user=40, reply=16)


def contents(dialogue: Dialogue) -> list[str]:
    return [message["content"] for turn in dialogue.turns for message in turn.add]


async def test_plain_conversations_have_the_lengths_asked_for() -> None:
    first, second = await workload("plain").dialogues(RULER, "0/800/0", SIZES, 2)
    sizes = [await words(text) for text in contents(first)]
    assert sizes == pytest.approx([797, *[40] * 7], abs=5)
    assert set(contents(first)).isdisjoint(contents(second))
    assert await workload("plain").dialogues(RULER, "0/800/0", SIZES, 1) == [first]


async def test_an_agents_session() -> None:
    (dialogue,) = await workload("agent").dialogues(RULER, "0/800/0", SIZES, None)
    assert [turn.note for turn in dialogue.turns] == [
        "question",
        "tool result",
        "tool result",
        "question",
        "fork",
        "tool result",
        "compaction",
        "tool result",
    ]
    opening, fork, compaction = dialogue.turns[0], dialogue.turns[4], dialogue.turns[6]
    assert [message["role"] for message in opening.add] == ["system", "user"]
    assert fork.after == 2
    # A compaction starts again from the same system prompt.
    assert (compaction.after, compaction.add[0]) == (0, opening.add[0])
    assert [message["role"] for message in compaction.add] == ["system", "user", "user"]
    result = dialogue.turns[1].add[0]
    assert (result["role"], result["tool_call_id"]) == ("tool", "call-2")
    # Reasoning stays while tools are called, and goes when a person speaks.
    assert [turn.reasoning for turn in dialogue.turns] == [0, 0, 8, 8, 0, 8, 0, 0]


async def test_an_agents_first_prompt_has_the_length_asked_for() -> None:
    (dialogue,) = await workload("agent").dialogues(RULER, "0/4000/0", Sizes(4000, 2, 40, 16), 1)
    said = sum([await words(message["content"]) for message in dialogue.turns[0].add])
    tools = sum([await words(json.dumps(tool)) for tool in dialogue.tools])
    assert said + tools == pytest.approx(4000 - 3, rel=0.02)
    assert {tool["function"]["name"] for tool in dialogue.tools} == {
        "read_file",
        "search",
        "run_command",
        "edit_file",
    }
