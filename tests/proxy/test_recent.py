"""The last turns, and what is said of them."""

from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.proxy.recent import KEPT, SHOWN, Finished, Recent, quantile, summary


def turn(total: float, status: int = 200, outcome: str = "hit", first: float | None = 5.0) -> Finished:
    return Finished(total % 1e6, "read_back", outcome, "verified", status, 100, 64, 10.0, first, total)


def test_rates_and_the_newest_first() -> None:
    recent = Recent()
    assert summary(recent)["first_token_ms"] == {"p50": None, "p95": None}
    for index in range(KEPT + 10):
        recent.add(turn(float(index), outcome="hit" if index % 2 else "miss"))
    recent.add(turn(-1.0, status=503, first=None))
    found = summary(recent)
    assert (found["turns"], found["failed"], found["hits"]) == (KEPT, 1, KEPT // 2)
    assert [one["total"] for one in found["last"]][:3] == [-1.0, KEPT + 9.0, KEPT + 8.0]
    assert len(found["last"]) == SHOWN


def test_several_workers_turns_are_put_in_order_and_the_latest_count() -> None:
    one, other = ([turn(float(index)) for index in range(start, 2 * KEPT, 2)] for start in (0, 1))
    found = summary([*one, *other])
    assert found["turns"] == KEPT
    assert [shown["total"] for shown in found["last"]] == [float(2 * KEPT - 1 - index) for index in range(SHOWN)]


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([0.5, 0.95]))
def test_a_quantile_leaves_its_share_below(values: list[float], share: float) -> None:
    found = quantile(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
