import pytest

from neuron_pd.bench import figures
from neuron_pd.bench.records import Record
from neuron_pd.bench.sweep import Step, SweepPlan, describe, run_sweep
from neuron_pd.bench.target import Endpoints
from neuron_pd.errors import EngineError, UsageError

from .endpoint import BYTES_A_TOKEN, MODEL, OVERHEAD, Endpoint

PLAN = SweepPlan(lengths=(64, 128), turns=3, user_tokens=20, reply_tokens=5, nonce="n0")


async def measured(endpoint: Endpoint, plan: SweepPlan = PLAN, metrics: bool = True) -> list[Record]:
    engine = endpoint.url if metrics else None
    kept: list[Record] = []
    records = await run_sweep(plan, Endpoints(endpoint.url, engine, None), kept.append)
    assert kept == records
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
        f"bench-n0-{leg}-{length}-0" for leg in ("on", "off") for length in (64, 128)
    }
    assert all(request["conversation_id"] == request["cache_salt"] for request in sent)
    assert all((r["temperature"], r["ignore_eos"], r["max_tokens"], r["model"]) == (0, True, 5, MODEL) for r in sent)


async def test_the_servers_own_answers_are_the_history(endpoint: Endpoint) -> None:
    records = await measured(endpoint)
    last = next(r for r in endpoint.requests if r["cache_salt"] == "bench-n0-on-64-0" and len(r["messages"]) == 5)
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
    assert [(step.conversation.leg, step.turn, step.done, step.total) for step in steps] == [
        ("on", 0, 0, 4),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": ()}, "prompt lengths must be 16 tokens or more"),
        ({"lengths": (1024, 0)}, "prompt lengths must be 16 tokens or more"),
        ({"turns": 1}, "at least 2 turns"),
        ({"reply_tokens": 0}, "must be 1 or more"),
        ({"repeats": 0}, "must be 1 or more"),
        ({"legs": ("sideways",)}, "a leg is on or off"),
    ],
)
def test_plans_that_cannot_be_measured(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SweepPlan(**change)  # type: ignore[arg-type]
