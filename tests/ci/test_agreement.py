import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ci.agreement import OURS, THEIRS, Seen, agrees, arguments, conversations, passed, report, rows

FOUND: dict[str, Any] = {
    "turns": [
        {"turn": 2, "theirs_ms": 100.0, "theirs_spread_ms": [90.0, 110.0],
         "ours_ms": 105.0, "ours_spread_ms": [101.0, 120.0], "ratio": 1.05}
    ],
    "lost": {THEIRS: 0, OURS: 0},
    "read_back": {THEIRS: 6, OURS: 6},
    "expected": 6,
}  # fmt: skip


def statistics(path: Path, *times: tuple[int, float]) -> Path:
    """A file with a request for each (turn, TTFT in ms)."""
    requests = [
        {
            "ttft_ms": ms,
            "start_time_ms": place,
            "input_num_turns": 2 * turn - 1,
            "input_num_tokens": 1,
            "conversation_id": 1,
        }
        for place, (turn, ms) in enumerate(times)
    ]
    path.write_text(json.dumps(requests))
    return path


def test_rows_are_medians_by_turn_with_the_rounds_beside_them(tmp_path: Path) -> None:
    seen = {THEIRS: Seen(), OURS: Seen()}
    for number, slow in enumerate((0, 10)):
        seen[THEIRS].add(statistics(tmp_path / f"a{number}", (1, 500), (2, 100 + slow), (2, 102 + slow)), expected=3)
        seen[OURS].add(statistics(tmp_path / f"b{number}", (1, 510), (2, 104 + slow)), expected=3)
    assert rows(seen)[1] == {
        "turn": 2,
        "theirs_ms": 106.0,
        "theirs_spread_ms": [101.0, 111.0],
        "ours_ms": 109.0,
        "ours_spread_ms": [104.0, 114.0],
        "ratio": 1.028,
    }
    assert (seen[THEIRS].lost, seen[OURS].lost) == (0, 2)


def test_medians_agree_within_the_spread_of_the_rounds() -> None:
    row = FOUND["turns"][0]
    assert agrees(row)
    assert not agrees({**row, "ours_ms": 150.0, "ours_spread_ms": [140.0, 160.0]})


@pytest.mark.parametrize(
    "bad",
    [{"lost": {THEIRS: 1, OURS: 0}}, {"read_back": {THEIRS: 6, OURS: 5}}],
    ids=["a request lost", "a turn not read back"],
)
def test_a_comparison_of_something_else_fails(bad: dict[str, Any]) -> None:
    assert passed(FOUND)
    assert not passed({**FOUND, **bad})


def test_the_table_says_who_was_how_fast() -> None:
    console = Console(record=True, width=140)
    console.print(report(FOUND))
    said = console.export_text()
    assert "100.0 (90.0 – 110.0)" in said
    assert "1.05" in said


def test_both_sides_speak_alike_in_words_of_their_own() -> None:
    options = arguments(["--conversations", "2", "--turns", "3"])
    one, other = conversations(0, options), conversations(1, options)
    assert [len(talk["messages"]) for talk in one] == [6, 6]
    assert {message["role"] for message in one[0]["messages"]} == {"user", "assistant"}
    for talk in (one[0], other[0]):
        lengths = [len(message["content"]) for message in talk["messages"]]
        assert lengths == pytest.approx([6000, 100, 400, 100, 400, 100], abs=20)
    assert one[0]["messages"][0] != other[0]["messages"][0]
