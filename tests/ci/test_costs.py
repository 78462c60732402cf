from typing import Any

import pytest

from ci.costs import GOALS, fingerprint_ms, goals, ledger_share

FOUND: dict[str, Any] = {
    "fingerprint_ms": {"16": 6.0},
    "ledger_share": {"short records": 0.7},
    "engine": {"blocks": 15, "control_path_ms": {"acquire": {"median": 1.5, "p99": 3.0}}, "idle_wakeups": 0},
}


def test_every_goal_is_measured() -> None:
    assert [(measured, goal) for _, measured, goal in goals(FOUND)] == [(6.0, 10.0), (0.7, 1.0), (1.5, 2.0), (0, 0.0)]
    assert len(GOALS) == 4


def test_without_an_engine_its_goals_are_left_out() -> None:
    assert len(list(goals({name: value for name, value in FOUND.items() if name != "engine"}))) == 2


@pytest.mark.parametrize("blocks", [1, 100])
def test_a_ledgers_memory_stays_within_its_bound(blocks: int) -> None:
    assert 0.3 < ledger_share(blocks, max_bytes=2**20) <= 1.0


def test_a_prompt_is_fingerprinted_at_each_block_size() -> None:
    found = fingerprint_ms(rounds=1)
    assert found.keys() == {"16", "32", "128"}
    assert all(milliseconds > 0 for milliseconds in found.values())
