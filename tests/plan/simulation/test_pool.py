"""The pool as a state machine: whatever happens, no block is lost, shared or made up."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from neuron_pd.plan.simulation.pool import Pool

TOTAL = 40
names = st.integers(0, 5)
blocks = st.integers(0, TOTAL + 5)


class Pools(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(TOTAL)
        self.running: dict[int, int] = {}

    @rule(name=names, count=blocks)
    def take(self, name: int, count: int) -> None:
        if name in self.running or self.pool.is_pinned(name) or not self.pool.can_take(count):
            return
        self.pool.take(name, count)
        self.running[name] = count
        assert self.pool.held(name) == 0

    @precondition(lambda self: self.running)
    @rule(data=st.data(), pin=st.booleans())
    def give(self, data: st.DataObject, pin: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        count = self.running.pop(name)
        keep = data.draw(st.integers(0, count))
        self.pool.give(name, count, keep)
        assert self.pool.held(name) == keep
        if pin:
            self.pool.pin(name)
            assert self.pool.held(name) == keep

    @rule(name=names)
    def pin(self, name: int) -> None:
        held = self.pool.held(name)
        self.pool.pin(name)
        assert self.pool.held(name) == held

    @rule(name=names)
    def unpin(self, name: int) -> None:
        held, pinned = self.pool.held(name), self.pool.is_pinned(name)
        assert self.pool.unpin(name) == pinned
        assert self.pool.held(name) == held

    @invariant()
    def every_block_is_somewhere_once(self) -> None:
        pool = self.pool
        assert min(pool.free, pool.running, pool.pinned, pool.cached) >= 0
        assert pool.running == sum(self.running.values())
        assert pool.running + pool.pinned + pool.cached + pool.free == TOTAL
        assert pool.pinned + pool.cached == sum(pool.held(name) for name in range(6))
        assert pool.pinned <= pool.peak_pinned <= TOTAL


Pools.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestPools = Pools.TestCase


def filled(*counts: int) -> Pool:
    """A pool of 40 with conversations 0, 1 ... cached in this order."""
    pool = Pool(TOTAL)
    for name, count in enumerate(counts):
        pool.cache(name, count)
    return pool


def test_the_least_recently_used_goes_first_and_from_its_tail() -> None:
    pool = filled(10, 10, 10)
    pool.cache(0, 10)
    pool.take(9, 14)
    assert [pool.held(name) for name in (0, 1, 2)] == [10, 6, 10]
    pool.take(8, 8)
    assert [pool.held(name) for name in (0, 1, 2)] == [10, 0, 8]


def test_pinned_blocks_are_not_evicted_and_can_keep_others_out() -> None:
    pool = filled(20, 20)
    pool.pin(0)
    assert not pool.can_take(21)
    pool.take(9, 20)
    assert [pool.held(name) for name in (0, 1)] == [20, 0]
    assert pool.unpin(0)
    assert not pool.unpin(0)


def test_a_cache_of_nothing_keeps_nothing() -> None:
    pool = Pool(0)
    pool.cache(1, 10)
    assert pool.held(1) == 0
