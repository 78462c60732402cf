import time
from pathlib import Path
from random import Random
from typing import Any, cast

import psutil
import pytest

from ci.chaos.__main__ import _victims, arguments, passed
from ci.chaos.parts import Part, Whole
from ci.chaos.talk import Talk
from ci.random_conversations import Conversation, engines
from neuron_pd.bench.client import Outcome
from neuron_pd.bench.stream import Reply
from neuron_pd.errors import EngineStartError

FOUND: dict[str, Any] = {
    "kills": [{"killed": ["decode"], "seconds": 40.0, "turns_until_reuse": 2}],
    "stuck": [],
    "unclear": [],
    "held": {"prefill": 0, "decode": 0},
    "wrong": [],
}


async def answers() -> bool:
    return True


def part(name: str) -> Part:
    return Part(name, [], {}, Path("unused"), answers)


@pytest.fixture
def whole() -> Whole:
    parts = {name: part(name) for name in ("prefill", "decode", "store", "proxy")}
    return Whole(**parts, urls={}, token="")


@pytest.fixture
def talk(whole: Whole) -> Talk:
    return Talk(cast("Any", None), whole, 0)


def outcome(status: int = 200, error: str = "", reply: Reply | None = None) -> Outcome:
    return Outcome(0.0, 10.0, 20.0, reply or Reply(content=["yes"]), status, error, {}, None)


def judged(talk: Talk, seen: Outcome) -> str | None:
    return talk._judge(seen, Conversation.of(0, 0))


def test_a_good_run_passes() -> None:
    assert passed(FOUND)


@pytest.mark.parametrize(
    "bad",
    [
        {"wrong": [{}]},
        {"stuck": ["after 120 s"]},
        {"unclear": ["after 1 s"]},
        {"held": {"prefill": 0, "decode": 3}},
        {"kills": [{"killed": ["store"], "seconds": 3.0, "turns_until_reuse": 3}]},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_what_must_not_happen_fails(bad: dict[str, Any]) -> None:
    assert not passed({**FOUND, **bad})


def test_everything_is_killed_before_anything_is_killed_again(whole: Whole) -> None:
    for seed in range(20):
        first = [victims[0].name for victims in _victims(Random(seed), whole, 8)]
        assert set(first[:4]) == set(first[4:]) == {"prefill", "decode", "store", "proxy"}
        assert all(len(set(map(id, victims))) == len(victims) for victims in _victims(Random(seed), whole, 8))


def test_a_reply_is_kept_to_be_compared(talk: Talk) -> None:
    assert judged(talk, outcome()) == "yes"
    assert [reply for _, reply in talk.answered] == ["yes"]


def test_a_failure_that_says_why_is_counted(talk: Talk) -> None:
    assert judged(talk, outcome(503, "HTTP 503: nothing ready")) is None
    assert judged(talk, outcome(200, "decode lost", Reply(error="decode lost"))) is None
    assert dict(talk.failures) == {"HTTP 503": 1, "error event in the stream": 1}
    assert not talk.answered


def test_a_broken_connection_is_excused_by_a_dead_proxy_alone(talk: Talk, whole: Whole) -> None:
    broken = outcome(200, "ClientPayloadError: not all of it came")
    whole.decode.outages.append((12.0, 14.0))
    judged(talk, broken)
    assert len(talk.unclear) == 1
    whole.proxy.outages.append((12.0, 14.0))
    judged(talk, broken)
    assert len(talk.unclear) == 1
    assert dict(talk.failures) == {"the proxy itself was down": 1}


def test_a_request_that_hangs_is_stuck(talk: Talk) -> None:
    judged(talk, outcome(0, "SocketTimeoutError: Timeout on reading data from socket"))
    assert len(talk.stuck) == 1


async def test_a_part_that_ends_at_once_is_named_with_its_last_words(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    short = Part("store", ["sh", "-c", "echo no room; exit 3"], {}, tmp_path / "log", never)
    with pytest.raises(EngineStartError, match="store does not serve: no room"):
        await short.start()


async def test_a_part_is_killed_with_all_its_processes_and_starts_again(tmp_path: Path) -> None:
    child = tmp_path / "child"

    async def up() -> bool:
        return child.exists()

    script = f"sleep 600 & echo $! > {child}; wait"
    lives = Part("engine", ["sh", "-c", script], {}, tmp_path / "log", up)
    for _ in range(2):
        await lives.start()
        pid = int(child.read_text())
        await lives.kill()
        child.unlink()
        with pytest.raises(ProcessLookupError):
            _still(pid)
    assert len(lives.outages) == 2
    assert lives.outages[0][1] < float("inf") == lives.outages[1][1]


def _still(pid: int) -> None:
    """ProcessLookupError once the process is gone or is only waiting to be reaped."""
    for _ in range(100):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                raise ProcessLookupError
        except psutil.NoSuchProcess:
            raise ProcessLookupError from None
        time.sleep(0.02)


def test_options_are_those_that_the_engines_need() -> None:
    topology = engines(arguments(["--first-port", "19000"]))
    assert topology.urls()["decode"].endswith(":19002")
