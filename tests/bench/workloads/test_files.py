"""Workloads that files describe: vLLM's two kinds, ShareGPT, and traces."""

import json
from pathlib import Path
from typing import Any

import pytest

from neuron_pd.bench.text import Ruler
from neuron_pd.bench.workloads import Dialogue, Sizes, workload
from neuron_pd.errors import UsageError


async def words(text: str) -> int:
    return len(text.split())


RULER = Ruler(chars_per_token=5.0, count=words)
SIZES = Sizes(length=0, turns=0, user=40, reply=16)


def written(path: Path, body: Any) -> str:
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return str(path)


async def dialogues(name: str, count: int | None = None, key: str = "0") -> list[Dialogue]:
    return await workload(name).dialogues(RULER, key, SIZES, count)


GENERATE = {
    "filetype": "generate_conversations",
    "num_conversations": 3,
    "text_files": ["book.txt"],
    "print_stats": False,
    "prompt_input": {
        "num_turns": {"distribution": "constant", "value": 7},
        "common_prefix_num_tokens": {"distribution": "constant", "value": 50},
        "prefix_num_tokens": {"distribution": "constant", "value": 100},
        "num_tokens": {"distribution": "uniform", "min": 12, "max": 16},
    },
    "prompt_output": {"num_tokens": {"distribution": "uniform", "min": 8, "max": 9}},
}


async def test_generate_conversations(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(" ".join(f"word{number}" for number in range(900)))
    name = written(tmp_path / "generate.json", GENERATE)
    found = await dialogues(name)
    assert [len(dialogue.turns) for dialogue in found] == [4, 4, 4]  # 7 messages: an answer for every question
    first, second = (dialogue.turns[0].add[0]["content"] for dialogue in found[:2])
    # A shared beginning of 50 tokens, a prefix of 100 of the conversation's own, the task, and 12 to 16 of question.
    assert first.split()[:48] == second.split()[:48]
    assert first.split()[52:60] != second.split()[52:60]
    assert 170 <= len(first.split()) <= 190
    assert all(21 <= len(turn.add[0]["content"].split()) <= 30 for turn in found[0].turns[1:])
    assert {turn.reply_tokens for dialogue in found for turn in dialogue.turns} == {8, 9}
    assert await dialogues(name) == found
    assert await dialogues(name, key="1") != found
    assert len(await dialogues(name, count=2)) == 2


MESSAGES = [
    {
        "id": "a",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "the first answer"},
            {"role": "user", "content": "two"},
        ],
    },
    {"id": "b", "messages": [{"role": "assistant", "content": "nobody asked"}]},
]


async def test_messages_files_replay_what_people_said(tmp_path: Path) -> None:
    (dialogue,) = await dialogues(written(tmp_path / "x.json", MESSAGES))
    first, second = dialogue.turns
    assert [message["content"] for message in first.add] == ["be brief", "one"]
    assert (first.reply_tokens, second.reply_tokens) == (3, SIZES.reply)
    assert [message["content"] for message in second.add] == ["two"]


async def test_sharegpt_that_begins_with_the_model(tmp_path: Path) -> None:
    said = [("gpt", "hello"), ("human", "one"), ("gpt", "a b c d"), ("human", "two"), ("gpt", "e")]
    body = [{"id": "s", "conversations": [{"from": who, "value": text} for who, text in said]}]
    (dialogue,) = await dialogues(written(tmp_path / "x.json", body))
    assert [(turn.add[0]["content"], turn.reply_tokens) for turn in dialogue.turns] == [("one", 4), ("two", 1)]


TRACE = [
    {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
    {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [9, 10]},
    {"timestamp": 3000, "input_length": 1700, "output_length": 2, "hash_ids": [1, 2, 4, 5]},
    {"timestamp": 3000, "input_length": 1024, "output_length": 2, "hash_ids": [7, 8]},
    {"timestamp": 5000, "input_length": 2100, "output_length": 2, "hash_ids": [1, 2, 4, 6, 11]},
]


async def test_a_trace_keeps_its_times_lengths_and_shared_beginnings(tmp_path: Path) -> None:
    name = written(tmp_path / "trace.jsonl", "\n".join(map(json.dumps, TRACE)) + "\n")
    says = workload(name, time_scale=0.5)
    assert (says.sized, says.timed) == (False, True)
    chat, other, third = await says.dialogues(RULER, "0", SIZES, None)
    assert [turn.due for turn in chat.turns] == [0.0, 1.0, 2.0]
    assert [turn.reply_tokens for turn in chat.turns] == [5, 2, 2]
    assert (other.turns[0].due, third.turns[0].due) == (0.25, 1.0)
    texts = [turn.add[0]["content"].split() for turn in chat.turns]
    assert [len(text) for text in texts] == pytest.approx([1100, 1700, 2100], rel=0.01)
    assert texts[0][:1000] == texts[1][:1000]
    assert texts[1][:1500] == texts[2][:1500]
    assert all(turn.after == 0 for turn in chat.turns)
    assert set(other.turns[0].add[0]["content"].split(".")).isdisjoint(chat.turns[0].add[0]["content"].split("."))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{torn", "line 1 is not JSON"),
        ([], "is no workload"),
        ("3", "is no workload"),
        ([{"id": "a"}], "conversation 1 has neither `messages` nor `conversations`"),
        ([{"id": "a", "messages": [{"role": "user"}]}], "conversation 1 has a message without a role or without text"),
        (MESSAGES[1:], "holds no conversation in which a user speaks"),
        ([{"conversations": [{"from": "martian", "value": "x"}]}], "has a message without a role"),
        ({**GENERATE, "prompt_output": None}, "prompt_output is missing"),
        ({**GENERATE, "num_conversations": 0}, "num_conversations must be a whole number above 0"),
        ({**GENERATE, "text_files": ["absent.txt"]}, r"there is no text file absent\.txt, neither beside it nor"),
        ({**GENERATE, "text_files": []}, "text_files names no text"),
        ([{"hash_ids": [1]}], "line 1 is no request: it needs timestamp, input_length"),
        ([{**TRACE[0], "input_length": 0}], "line 1 holds a number that cannot be used"),
    ],
)
def test_files_that_are_no_workload(body: Any, message: str, tmp_path: Path) -> None:
    name = written(tmp_path / "x", body)
    with pytest.raises(UsageError, match=message):
        workload(name)


def test_a_name_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--workload agents is none of plain, agent, and no readable file"):
        workload("agents")
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not text"):
        workload(str(tmp_path / "x"))
