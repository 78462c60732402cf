import asyncio
import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest

from neuron_pd.bench import figures
from neuron_pd.bench.records import Cell, Record, Setting
from neuron_pd.bench.sweep import Step, SweepPlan, describe, run_sweep
from neuron_pd.bench.target import Endpoints
from neuron_pd.errors import EngineError, UsageError

from .endpoint import BYTES_A_TOKEN, MODEL, OVERHEAD, Endpoint

PLAN = SweepPlan(lengths=(64, 128), turns=3, user_tokens=20, reply_tokens=5, nonce="n0")


async def measured(endpoint: Endpoint, plan: SweepPlan = PLAN, metrics: bool = True) -> list[Record]:
    engine = endpoint.url if metrics else None
    kept: list[Record | Cell] = []
    records = await run_sweep(plan, Endpoints(endpoint.url, engine, None), kept.append)
    assert [line for line in kept if isinstance(line, Record)] == records
    return records


async def test_legs_alternate_and_every_turn_is_recorded(endpoint: Endpoint) -> None:
    records = await measured(endpoint)
    order = [(record.length, record.leg, record.turn) for record in records]
    legs = [(64, "off"), (64, "on"), (128, "on"), (128, "off")]
    assert order == [(length, leg, turn) for length, leg in legs for turn in (1, 2, 3)]
    # A turn adds 20 tokens of question, 5 of reply and what the template puts around both; text is cut at a word.
    prompts = [record.prompt_tokens for record in records[:3]]
    assert prompts == pytest.approx([64, 64 + 20 + 5 + 2 * OVERHEAD, 64 + 2 * (20 + 5 + 2 * OVERHEAD)], abs=6)
    assert all(record.ok and record.reply_tokens == 5 for record in records)


async def test_legs_say_the_same_words_under_salts_of_their_own(endpoint: Endpoint) -> None:
    await measured(endpoint)
    sent = [request for request in endpoint.requests if "warm-up" not in request["cache_salt"]]
    off = [request for request in sent if request["off"]]
    on = [request for request in sent if not request["off"]]
    assert sorted(map(str, (request["messages"] for request in off))) == sorted(map(str, (r["messages"] for r in on)))
    assert {request["cache_salt"] for request in sent} == {
        f"bench-n0-{cell}-{leg}-{length}-0" for leg in ("on", "off") for cell, length in ((0, 64), (1, 128))
    }
    assert all(request["conversation_id"] == request["cache_salt"] for request in sent)
    assert all((r["temperature"], r["ignore_eos"], r["max_tokens"], r["model"]) == (0, True, 5, MODEL) for r in sent)


async def test_the_servers_own_answers_are_the_history(endpoint: Endpoint) -> None:
    records = await measured(endpoint)
    last = next(r for r in endpoint.requests if r["cache_salt"] == "bench-n0-0-on-64-0" and len(r["messages"]) == 5)
    replies = [record.reply for record in records if (record.length, record.leg) == (64, "on")]
    assert [message["content"] for message in last["messages"] if message["role"] == "assistant"] == replies[:2]


async def test_two_unrecorded_turns_warm_the_engines(endpoint: Endpoint) -> None:
    await measured(endpoint)
    warm = [request for request in endpoint.requests if "warm-up" in request["cache_salt"]]
    assert [request["cache_salt"] for request in warm] == ["bench-n0-warm-up-64"] * 2
    questions = {request["messages"][0]["content"] for request in endpoint.requests}
    assert len(questions) == 3  # the warm-up, and a conversation at each length
    assert not any(request["off"] for request in warm)


async def test_server_side_truth_stands_beside_the_clients(endpoint: Endpoint) -> None:
    endpoint.lag = 1
    records = await measured(endpoint)
    later = [record for record in records if record.leg == "on" and record.turn > 1]
    for record in later:
        assert record.report is not None
        assert record.read_back is not None
        assert record.report.reused > 0
        assert (record.read_back.count, record.read_back.bytes) == (1, record.report.reused * BYTES_A_TOKEN)
        assert record.read_back.mean_ms == pytest.approx(4.0)
        assert (record.prefill_ms, record.hand_off) == (5.0, None)
    off = [record for record in records if record.leg == "off"]
    assert {record.read_back.count for record in off if record.read_back} == {0}
    assert figures.answers(records) == (6, 6)
    assert figures.warnings(records) == []


async def test_a_seed_gives_the_same_words_again_and_another_does_not(endpoint: Endpoint) -> None:
    first = await measured(endpoint, metrics=False)
    again = await measured(
        endpoint, SweepPlan(lengths=(64, 128), turns=3, user_tokens=20, reply_tokens=5), metrics=False
    )
    other = await measured(
        endpoint, SweepPlan(lengths=(64,), turns=3, user_tokens=20, reply_tokens=5, seed=1), metrics=False
    )
    assert [record.history for record in again] == [record.history for record in first]
    assert {record.history for record in other}.isdisjoint({record.history for record in first})
    assert {record.conversation for record in again}.isdisjoint({record.conversation for record in first})


async def test_repeats_and_a_single_leg(endpoint: Endpoint) -> None:
    plan = SweepPlan(lengths=(64,), turns=2, user_tokens=8, reply_tokens=2, legs=("on",), repeats=2)
    records = await measured(endpoint, plan, metrics=False)
    assert [(record.repeat, record.turn, record.leg) for record in records] == [
        (0, 1, "on"),
        (0, 2, "on"),
        (1, 1, "on"),
        (1, 2, "on"),
    ]
    assert len({record.history for record in records}) == 4
    assert figures.answers(records) == (0, 0)


async def test_a_failed_turn_is_recorded_and_ends_its_conversation(endpoint: Endpoint) -> None:
    endpoint.fail_at = ("off", 2)
    records = await measured(endpoint, metrics=False)
    off = [record for record in records if record.leg == "off"]
    assert [(record.turn, record.status, record.ok) for record in off] == [(1, 200, True), (2, 503, False)] * 2
    assert off[1].error == "HTTP 503: no prefill engine is ready"
    assert len([record for record in records if record.leg == "on" and record.ok]) == 6


async def test_a_failed_warm_up_ends_the_sweep(endpoint: Endpoint) -> None:
    endpoint.fail_at = ("on", 2)
    with pytest.raises(EngineError, match="the warm-up at 64 tokens failed: HTTP 503"):
        await measured(endpoint)


async def test_answers_that_differ_are_counted(endpoint: Endpoint) -> None:
    endpoint.diverge = True
    records = await measured(endpoint, metrics=False)
    assert figures.answers(records) == (0, 6)


async def test_a_proxy_that_ignores_off_is_noticed(endpoint: Endpoint) -> None:
    endpoint.honours_off = False
    records = await measured(endpoint, metrics=False)
    assert any("does not honour" in warning for warning in figures.warnings(records))


async def test_progress_before_and_after_each_turn(endpoint: Endpoint) -> None:
    steps: list[Step] = []
    plan = SweepPlan(lengths=(64,), turns=2, user_tokens=8, reply_tokens=2)
    records = await run_sweep(plan, Endpoints(endpoint.url), lambda record: None, steps.append)
    assert [(step.leg, step.turn, step.done, step.total) for step in steps] == [
        ("on", 0, 0, None),
        *(("off", turn, done, 4) for turn, done in ((1, 0), (1, 1), (2, 1), (2, 2))),
        *(("on", turn, done, 4) for turn, done in ((1, 2), (1, 3), (2, 3), (2, 4))),
    ]
    assert [step.record for step in steps if step.record] == records


async def test_the_header_says_what_was_run_on_what(endpoint: Endpoint) -> None:
    plan, header = await describe(
        PLAN, Endpoints(endpoint.url, endpoint.url), ["neuron-pd", "bench", "sweep", "--seed", "a b"]
    )
    assert plan.model == MODEL
    assert header["command"] == "neuron-pd bench sweep --seed 'a b'"
    assert (header["plan"]["lengths"], header["plan"]["nonce"]) == ((64, 128), "n0")
    assert header["engines"] == {"prefill": {"vllm": "0.32.0", "nixl": "1.5.1", "block_size": 16}, "decode": None}
    assert header["model"] == {"name": MODEL, "max_model_len": 4096}
    assert header["host"]["cores"] >= 1
    assert header["host"]["memory_bytes"] > 2**20


async def test_a_plan_that_does_not_fit_is_refused_before_anything_is_sent(endpoint: Endpoint) -> None:
    plan = SweepPlan(lengths=(4096,))
    for refused in (describe(plan, Endpoints(endpoint.url), []), measured(endpoint, plan)):
        with pytest.raises(UsageError, match="and Tiny takes 4096"):
            await refused
    assert endpoint.requests == []


async def test_every_load_and_think_time_is_a_cell_of_its_own(endpoint: Endpoint) -> None:
    plan = replace(PLAN, lengths=(64,), turns=2, concurrency=(1, 3), think=(0.0, 0.01), legs=("on",))
    kept: list[Record | Cell] = []
    records = await run_sweep(plan, Endpoints(endpoint.url), kept.append)
    cells = [line for line in kept if isinstance(line, Cell)]
    assert [cell.setting for cell in cells] == [
        Setting(64, 1),
        Setting(64, 1, think=0.01),
        Setting(64, 3),
        Setting(64, 3, think=0.01),
    ]
    assert [cell.requests for cell in cells] == [2, 2, 6, 6]
    assert {record.index for record in records if record.concurrency == 3} == {0, 1, 2}
    paused = [record for record in records if record.setting == Setting(64, 1, think=0.01)]
    assert paused[1].started - paused[0].ended >= 0.01


async def until_in_flight(endpoint: Endpoint, requests: int) -> None:
    while endpoint.in_flight < requests:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_closed_loop_keeps_so_many_under_way(endpoint: Endpoint) -> None:
    endpoint.stall = asyncio.Event()
    plan = replace(PLAN, lengths=(64,), turns=2, concurrency=(3,), conversations=5, legs=("on",), warm_up=False)
    sweeping = asyncio.ensure_future(run_sweep(plan, Endpoints(endpoint.url), lambda line: None))
    await until_in_flight(endpoint, 3)
    endpoint.stall.set()
    records = await sweeping
    assert endpoint.most_in_flight == 3
    assert sorted({record.index for record in records}) == [0, 1, 2, 3, 4]
    # Not one request was alone, so what the engines counted belongs to none of them.
    assert {record.read_back for record in records} == {None}


async def test_an_open_loop_sends_at_its_times_whatever_the_servers_do(endpoint: Endpoint) -> None:
    endpoint.stall = asyncio.Event()
    plan = replace(PLAN, lengths=(64,), turns=2, rates=(200.0,), conversations=6, warm_up=False)
    sweeping = asyncio.ensure_future(run_sweep(plan, Endpoints(endpoint.url), lambda line: None))
    await until_in_flight(endpoint, 6)
    endpoint.stall.set()
    records = await sweeping
    for leg in ("on", "off"):
        first = [record for record in records if (record.leg, record.turn) == (leg, 1)]
        assert sorted(record.index for record in first) == list(range(6))
        assert all(record.due is not None and record.started >= record.due for record in first)
    dues = [sorted(r.due or 0 for r in records if (r.leg, r.turn) == (leg, 1)) for leg in ("on", "off")]
    gaps = [[late - early for early, late in pairwise(leg)] for leg in dues]
    assert gaps[0] == pytest.approx(gaps[1])
    assert len({round(gap, 6) for gap in gaps[0]}) == 5


async def test_a_cell_holds_what_the_engines_counted(endpoint: Endpoint) -> None:
    endpoint.token = "secret"
    plan = replace(PLAN, lengths=(64,), concurrency=(2,))
    kept: list[Record | Cell] = []
    await run_sweep(plan, Endpoints(endpoint.url, endpoint.url), kept.append, token="secret")
    off, on = (line for line in kept if isinstance(line, Cell))
    assert (off.leg, on.leg, on.requests, on.failed) == ("off", "on", 6, 0)
    assert off.read_back is not None
    assert on.read_back is not None
    assert (off.read_back.count, on.read_back.count) == (0, 4)
    assert on.engines["prefill"]["turns_read_back_verified"] == 4
    assert on.engines["decode"] == {}


async def test_phases_stand_beside_each_lone_request(endpoint: Endpoint) -> None:
    records = await measured(endpoint, replace(PLAN, lengths=(64,)))
    phases = records[-1].prefill_phases
    assert phases is not None
    assert (phases.count, phases.prefill) == (1, pytest.approx(0.020))
    assert records[-1].decode_phases is None
    assert records[-1].head is not None
    assert records[-1].started < records[-1].head <= (records[-1].first_token or 0)
    assert records[-1].pieces == 5


async def test_cells_that_were_done_are_not_measured_again(endpoint: Endpoint) -> None:
    done = {("off", Setting(64), 0), ("on", Setting(64), 0), ("off", Setting(128), 0)}
    records = await run_sweep(PLAN, Endpoints(endpoint.url), lambda line: None, done=done)
    assert {(record.leg, record.length) for record in records} == {("on", 128)}
    everything = {*done, ("on", Setting(128), 0)}
    endpoint.requests.clear()
    assert await run_sweep(PLAN, Endpoints(endpoint.url), lambda line: None, done=everything) == []
    assert [r for r in endpoint.requests if "cache_salt" in r] == []


async def test_an_agents_session_forks_compacts_and_keeps_the_answers(endpoint: Endpoint) -> None:
    plan = replace(PLAN, lengths=(400,), turns=7, workload="agent", legs=("on",), reply_tokens=6)
    records = await measured(endpoint, plan, metrics=False)
    sent = [request for request in endpoint.requests if "warm-up" not in request["cache_salt"]]
    assert [record.note for record in records][-3:] == ["fork", "tool result", "compaction"]
    assert all(request["tool_choice"] == "none" and len(request["tools"]) == 4 for request in sent)
    assert sent[1]["messages"][-2] == {"role": "assistant", "content": records[0].reply}
    # The fork continues after turn 2, the compaction after nothing but the system prompt.
    assert sent[4]["messages"][:-1] == sent[2]["messages"][:-1]
    assert sent[6]["messages"][0] == sent[0]["messages"][0]
    assert len(sent[6]["messages"]) == 3
    # Turn 3 is followed by a question: half of its reply is left out as reasoning.
    words = records[2].reply.split()
    assert sent[3]["messages"][-2]["content"].split() == words[3:]


async def test_each_link_is_set_and_warmed_before_it_is_measured(endpoint: Endpoint) -> None:
    plan = replace(PLAN, lengths=(64,), turns=2, links=("1gbit", "unlimited"), legs=("on",))
    seen: list[tuple[str, int]] = []

    def limit(link: str) -> None:
        seen.append((link, len(endpoint.requests)))

    records = await run_sweep(plan, Endpoints(endpoint.url), lambda line: None, limit_link=limit)
    assert seen == [("1gbit", 0), ("unlimited", 4)]  # two turns of warm-up and two measured
    assert [record.link for record in records] == ["1gbit", "1gbit", "unlimited", "unlimited"]


async def test_caches_are_kept_apart_by_a_prefix_where_a_salt_is_not_known(endpoint: Endpoint) -> None:
    await measured(endpoint, replace(PLAN, lengths=(64,), cache_bust="prefix"), metrics=False)
    first = {request["messages"][0]["content"].split()[0] for request in endpoint.requests}
    assert first == {"[bench-n0-warm-up-64]", "[bench-n0-0-off-64-0]", "[bench-n0-0-on-64-0]"}
    assert not any("cache_salt" in request for request in endpoint.requests)
    endpoint.requests.clear()
    await measured(endpoint, replace(PLAN, lengths=(64,), cache_bust="none", ignore_eos=False), metrics=False)
    assert not any("cache_salt" in request or request["ignore_eos"] for request in endpoint.requests)
    assert not any(request["messages"][0]["content"].startswith("[") for request in endpoint.requests)


async def test_a_file_brings_its_own_lengths(endpoint: Endpoint, tmp_path: Path) -> None:
    said = [{"role": "user", "content": "one two three"}, {"role": "assistant", "content": "four five"}]
    long = [{"role": "user", "content": "word " * 9000}]
    items = [{"id": str(n), "messages": messages} for n, messages in enumerate((said * 3, long, said))]
    (tmp_path / "talk.json").write_text(json.dumps(items))
    plan = replace(PLAN, workload=str(tmp_path / "talk.json"), turns=0)
    records = await measured(endpoint, plan, metrics=False)
    assert {record.length for record in records} == {0}
    # The second is longer than the model.
    assert [(r.index, r.turn) for r in records if r.leg == "on"] == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert {record.reply_tokens for record in records} == {2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": ()}, "prompt lengths must be 16 tokens or more"),
        ({"lengths": (1024, 0)}, "prompt lengths must be 16 tokens or more"),
        ({"turns": 1}, "at least 2 turns"),
        ({"reply_tokens": 0}, "must be 1 or more"),
        ({"repeats": 0}, "must be 1 or more"),
        ({"legs": ("sideways",)}, "a leg is on or off"),
        ({"turns": 0}, "at least 2 turns"),
        ({"concurrency": (0,)}, "concurrency must be 1 or more"),
        ({"rates": (0.0,)}, "arrival rates must be above 0"),
        ({"think": (-1.0,)}, "think times must be 0 seconds or more"),
        ({"conversations": 0}, "conversations must be 1 or more"),
        ({"cache_bust": "luck"}, "a cache is busted by salt, prefix, none"),
    ],
)
def test_plans_that_cannot_be_measured(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SweepPlan(**change)  # type: ignore[arg-type]


def test_a_plan_is_read_back_from_its_header_under_another_nonce() -> None:
    plan = replace(PLAN, think=(0.0, 5.0), rates=(0.5,), seed=7)
    again = SweepPlan.from_json(json.loads(json.dumps(asdict(plan))))
    assert again.nonce != plan.nonce
    assert replace(again, nonce=plan.nonce) == plan
