import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.errors import UsageError
from neuron_pd.launcher.cores import available_cores, format_cores, halves, parse_cores, shares


@given(st.sets(st.integers(0, 200), min_size=1))
def test_core_lists_round_trip(cores: set[int]) -> None:
    assert parse_cores(format_cores(cores)) == sorted(cores)
    first, second = halves(sorted(cores))
    if len(cores) > 1:
        assert first + second == sorted(cores)
        assert len(first) - len(second) in (0, 1)


def test_cores() -> None:
    assert format_cores([0, 1, 2, 6]) == "0-2,6"
    assert halves([5]) == ([5], [5])
    assert available_cores() == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,,2", "1-2-3"])
def test_not_a_core_list(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of cores"):
        parse_cores(text)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=40, unique=True), st.integers(1, 8))
def test_shares_are_disjoint_and_as_equal_as_can_be(cores: list[int], count: int) -> None:
    found = shares(cores, count)
    assert len(found) == count
    if len(cores) < count:
        assert found == [cores] * count
    else:
        assert [core for share in found for core in share] == cores
        assert max(map(len, found)) - min(map(len, found)) <= 1
