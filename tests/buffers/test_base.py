from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.buffers import Run, runs

numbers = st.lists(st.integers(0, 40), unique=True, max_size=20)


@given(numbers, st.data())
def test_runs_pair_what_they_were_given_and_cannot_be_joined(blocks: list[int], data: st.DataObject) -> None:
    slots = data.draw(st.lists(st.integers(0, 40), unique=True, min_size=len(blocks), max_size=len(blocks)))
    found = runs(blocks, slots)
    pairs = [(run.block + i, run.slot + i) for run in found for i in range(run.length)]
    assert pairs == list(zip(blocks, slots, strict=True))
    for one, other in pairwise(found):
        assert (other.block, other.slot) != (one.block + one.length, one.slot + one.length)


def test_consecutive_blocks_in_consecutive_slots_are_one_run() -> None:
    assert runs([4, 5, 6, 9], [0, 1, 2, 3]) == [Run(4, 0, 3), Run(9, 3, 1)]
    assert runs([4, 5], [1, 0]) == [Run(4, 1, 1), Run(5, 0, 1)]
    assert runs([], []) == []


def test_lists_of_unequal_length_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="shorter"):
        runs([1, 2], [1])
