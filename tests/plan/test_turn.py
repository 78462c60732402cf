import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.core.decision import Path, Prompt, expected
from neuron_pd.plan.turn import COLUMNS, Account, Coefficients, Quantity, Turn, features

from .truth import LAYOUT, TRUTH

coefficients = st.builds(Coefficients, **{name: st.floats(0, 1e-3) for name in COLUMNS})
turns = st.builds(
    lambda new, reused, local, held: Turn(new + reused + local, reused, local, held),
    st.integers(1, 30_000),
    st.integers(0, 30_000),
    st.integers(0, 30_000),
    st.integers(0, 100_000),
)


@given(coefficients, turns)
def test_what_is_fitted_is_what_is_planned(by: Coefficients, turn: Turn) -> None:
    account = Account.of(turn, by, LAYOUT)
    planned = {
        Quantity.ACQUIRE: account.acquire,
        Quantity.TRANSFER: account.transfer,
        Quantity.PREFILL: account.prefill,
        Quantity.TTFT: account.ttft,
    }
    for quantity, seconds in planned.items():
        row = features(quantity, turn, LAYOUT)
        assert set(row) <= set(COLUMNS)
        assert sum(getattr(by, name) * value for name, value in row.items()) == pytest.approx(seconds)


@given(coefficients, turns)
def test_the_parts_are_the_whole(by: Coefficients, turn: Turn) -> None:
    account = Account.of(turn, by, LAYOUT)
    assert account.compute + account.transfer + account.handover == pytest.approx(account.ttft)
    assert account.prefill <= account.ttft * (1 + 1e-9)


def test_a_turn_that_reads_nothing_pays_for_no_read() -> None:
    account = Account.of(Turn(4096), TRUTH, LAYOUT)
    assert account.transfer == account.acquire == 0
    assert account.host == pytest.approx(TRUTH.prompt_per_token * 4096)


def test_the_decision_sees_the_difference_that_the_plan_sees() -> None:
    prompt, held = 4246, 4096
    off = Account.of(Turn(prompt, 0, held=held), TRUTH, LAYOUT)
    on = Account.of(Turn(prompt, held, held=held), TRUTH, LAYOUT)
    ways = expected(Prompt(prompt, held), TRUTH.costs(LAYOUT))
    assert ways[Path.RECOMPUTE] - ways[Path.READ_BACK] == pytest.approx(off.ttft - on.ttft)
