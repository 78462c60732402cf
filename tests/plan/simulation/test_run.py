"""Whole simulations: against queueing theory, against laws of conservation, and for what they are there to show."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_pd.core.decision import Path
from neuron_pd.errors import UsageError
from neuron_pd.plan.calibration import Calibration, DecodeCost
from neuron_pd.plan.plan import Conversation, plan
from neuron_pd.plan.queueing import closed_queue, open_queue
from neuron_pd.plan.simulation.run import _Simulation, simulate
from neuron_pd.plan.simulation.workload import Cluster, Policy, Retention, Routing, Spread, Workload
from neuron_pd.plan.turn import Coefficients, Turn

from ..truth import calibration

BY = calibration()
ROOMY = Cluster(pool_tokens=10**7)
OFF, LEASE, PIN = Policy(reuse=False), Policy(), Policy(retention=Retention.PIN, ttl=60.0)


def plain(per_token: float = 1e-3) -> Calibration:
    """A cluster on which a turn is nothing but its prompt's computation."""
    return calibration(coefficients=Coefficients(prefill_per_token=per_token), decode=DecodeCost(0.0))


def wait(by: Calibration, workload: Workload, cluster: Cluster = ROOMY) -> float:
    return fmean(turn.prefill_wait for turn in simulate(by, workload, cluster, OFF).served)


def test_constant_prompts_wait_as_m_d_1() -> None:
    workload = Workload(conversations=12_000, turns=1, first=1000, reply=1, rate=0.7, seed=1)
    assert wait(plain(), workload) == pytest.approx(open_queue(0.7, [1.0]).wait, rel=0.05)


def test_exponential_prompts_wait_as_m_m_1() -> None:
    workload = Workload(12_000, 1, first=1000, reply=1, rate=0.7, spread=Spread.EXPONENTIAL, seed=1)
    assert wait(plain(), workload) == pytest.approx(0.7 / (1 - 0.7), rel=0.08)


def test_a_closed_system_waits_as_mean_value_analysis_says() -> None:
    workload = Workload(8_000, 1, first=1000, reply=1000, clients=6, spread=Spread.EXPONENTIAL, seed=1)
    by = replace(plain(), decode=DecodeCost(0.004))  # replies of 4 s: the delay that a client is away
    assert wait(by, workload) == pytest.approx(closed_queue(6, 1.0, 4.0).wait, rel=0.05)


def test_several_engines_share_the_turns() -> None:
    workload = Workload(8_000, 1, first=1000, reply=1, rate=2.1, seed=1)
    shared = wait(plain(), workload, Cluster(prefill=3, pool_tokens=10**7))
    # Each is chosen by its load when a turn comes, not when one is free: a little worse than one common queue.
    assert open_queue(2.1, [1.0], 3).wait * 0.95 < shared < open_queue(0.7, [1.0]).wait


def test_one_conversation_alone_takes_what_the_plan_says() -> None:
    workload = Workload(conversations=1, turns=4, first=4096, user=150, reply=300, think=0.0, clients=1)
    for policy, leg in ((OFF, "off"), (LEASE, "on")):
        for turn in simulate(BY, workload, ROOMY, policy).served[1:]:
            (row,) = plan(BY, [4096], Conversation(150, 300, turn.number)).rows
            assert 1000 * turn.ttft == pytest.approx(getattr(row, leg).ttft_ms), (policy, turn.number)


def test_a_first_turn_hands_its_whole_prompt_over() -> None:
    workload = Workload(conversations=1, turns=1, first=4096, clients=1)
    (turn,) = simulate(BY, workload, ROOMY, LEASE).served
    assert turn.ttft == pytest.approx(BY.account(Turn(4096)).ttft)


def test_pins_starve_d_and_leases_do_not() -> None:
    small = Cluster(pool_tokens=20_000)
    workload = Workload(conversations=60, turns=3, first=2048, think=20.0, rate=0.5, seed=4)
    lease, pin = (simulate(BY, workload, small, policy).as_json() for policy in (LEASE, PIN))
    assert lease["retention_waits"] == 0
    assert pin["retention_waits"] > 20
    assert pin["retention_wait_s_max"] > 10
    assert pin["ttft_ms_p90"] > 3 * lease["ttft_ms_p90"]
    assert pin["peak_pinned_share"] > 0.8


def test_a_budget_keeps_pins_from_starving_d() -> None:
    small = Cluster(pool_tokens=20_000)
    workload = Workload(conversations=60, turns=3, first=2048, think=20.0, rate=0.5, seed=4)
    whole, half = (simulate(BY, workload, small, replace(PIN, pin_budget=share)).as_json() for share in (1.0, 0.5))
    assert half["retention_wait_s_total"] < whole["retention_wait_s_total"] / 4
    assert half["peak_pinned_share"] <= 0.5
    assert half["hit_rate"] < whole["hit_rate"]


def test_a_pin_ends_with_its_time() -> None:
    workload = Workload(conversations=40, turns=2, first=2048, think=30.0, rate=0.01, seed=2)
    short, long = (simulate(BY, workload, ROOMY, replace(PIN, ttl=ttl)).as_json() for ttl in (30.0, 10_000.0))
    assert long["hit_rate"] == 1.0
    assert short["hit_rate"] == pytest.approx(1 - 2.718**-1, abs=0.15)  # pauses are exponential with mean 30 s


def test_a_sticky_d_lacks_less_than_one_in_turn() -> None:
    workload = Workload(conversations=20, turns=6, first=4096, rate=0.02)
    two = Cluster(decode=2, pool_tokens=10**6)
    sticky, robin = (simulate(BY, workload, two, Policy(routing=routing)).as_json() for routing in Routing)
    assert sticky["hit_rate"] == robin["hit_rate"] == 1.0  # the KV travels from the old D by P to the new one
    assert sticky["ttft_ms_mean"] < robin["ttft_ms_mean"]


def test_p_s_own_cache_leaves_the_reply_to_fetch_or_compute() -> None:
    workload = Workload(conversations=5, turns=4, first=4096, reply=300, rate=0.01)
    kept = Cluster(pool_tokens=10**6, prefill_pool_tokens=10**6)
    fetched = simulate(BY, workload, kept, LEASE)
    computed = simulate(BY, workload, kept, replace(LEASE, threshold=1000))
    assert all(0 < turn.reused <= 512 for turn in fetched.later)
    assert all(turn.reused == 0 and turn.local > 4000 for turn in computed.later)


def test_direct_turns_are_chosen_while_d_has_little_else_to_do() -> None:
    workload = Workload(conversations=60, turns=4, first=2048, user=20, reply=100, think=1.0, rate=0.1)
    paths = simulate(BY, workload, ROOMY, replace(LEASE, direct=True)).as_json()["paths"]
    assert min(paths["direct"], paths["read_back"]) > 10


def test_auto_recomputes_what_is_cheaper_to_compute() -> None:
    by = calibration(coefficients=Coefficients(prefill_per_token=1e-4, read_latency=1.0))
    workload = Workload(conversations=3, turns=3, first=1024, rate=0.01)
    assert {turn.path for turn in simulate(by, workload, ROOMY, LEASE).later} == {Path.READ_BACK}
    assert {turn.path for turn in simulate(by, workload, ROOMY, replace(LEASE, threshold="auto")).later} == {
        Path.RECOMPUTE
    }


def test_a_seed_is_a_run_and_every_policy_sees_the_same_conversations() -> None:
    workload = Workload(conversations=50, turns=3, rate=0.5, spread=Spread.EXPONENTIAL, seed=7)
    cluster = Cluster(pool_tokens=100_000)
    assert simulate(BY, workload, cluster, LEASE) == simulate(BY, workload, cluster, LEASE)

    def prompts(policy: Policy) -> set[tuple[int, int, int]]:
        return {
            (turn.conversation, turn.number, turn.prompt) for turn in simulate(BY, workload, cluster, policy).served
        }

    assert prompts(OFF) == prompts(LEASE) == prompts(PIN)
    assert prompts(LEASE) != {
        (turn.conversation, turn.number, turn.prompt)
        for turn in simulate(BY, replace(workload, seed=8), cluster, LEASE).served
    }


def test_a_conversation_that_cannot_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="raise --pool-tokens"):
        simulate(BY, Workload(conversations=1, turns=10, first=4096), Cluster(pool_tokens=5000), LEASE)


policies = st.builds(
    Policy,
    reuse=st.booleans(),
    retention=st.sampled_from(Retention),
    routing=st.sampled_from(Routing),
    threshold=st.sampled_from([0, 64, 5000, "auto"]),
    ttl=st.floats(0.1, 500),
    pin_budget=st.floats(0, 1),
    direct=st.booleans(),
)
workloads = st.builds(
    Workload,
    conversations=st.integers(1, 40),
    turns=st.integers(1, 5),
    first=st.integers(1, 3000),
    user=st.integers(1, 300),
    reply=st.integers(1, 300),
    think=st.floats(0, 50),
    rate=st.none() | st.floats(0.01, 10),
    clients=st.integers(1, 10),
    seed=st.integers(0, 99),
)
clusters = st.builds(
    Cluster,
    prefill=st.integers(1, 3),
    decode=st.integers(1, 3),
    pool_tokens=st.integers(6000, 40_000),
    prefill_pool_tokens=st.sampled_from([0, 10_000]),
    max_num_seqs=st.integers(1, 8),
)


@settings(max_examples=60, deadline=None)
@given(workloads, clusters, policies)
def test_every_turn_ends_and_every_block_comes_back(workload: Workload, cluster: Cluster, policy: Policy) -> None:
    simulation = _Simulation(BY, workload, cluster, policy)
    outcome = simulation.run()
    assert len(outcome.served) == workload.conversations * workload.turns
    for turn in outcome.served:
        assert 0 <= turn.reused + turn.local <= turn.history < turn.prompt
        assert min(turn.prefill_wait, turn.decode_wait, turn.retention_wait) >= -1e-9
        assert turn.retention_wait <= turn.decode_wait + 1e-9
        assert turn.prefill_wait + turn.decode_wait < turn.ttft
    for engine in simulation._decode:
        assert engine.running == engine.load == engine.pool.running == engine.pool.pinned == 0
        assert engine.pool.peak_pinned <= engine.pool.total
    assert all(engine.tokens_in_flight == 0 for engine in simulation._prefill)
    assert outcome.prefill_busy <= outcome.seconds * (1 + 1e-9)
    assert policy.reuse or not any(turn.reused for turn in outcome.served)
