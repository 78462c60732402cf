"""Slots have a life: taken, held, given back."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neuron_pd.buffers.slots import SlotPool

CAPACITY = 12
names = st.sampled_from("abcdef")


class Slots(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool(CAPACITY)
        self.held: dict[str, list[int]] = {}

    @rule(name=names, count=st.integers(0, CAPACITY + 2))
    def take(self, name: str, count: int) -> None:
        self.held.pop(name, None)
        room = CAPACITY - sum(map(len, self.held.values()))
        taken = self.pool.take(name, count)
        assert (taken is None) == (count > room)
        if taken is not None:
            assert taken == sorted(taken)
            assert len(taken) == count
            self.held[name] = taken

    @rule(name=names)
    def give_back(self, name: str) -> None:
        self.held.pop(name, None)
        self.pool.give_back(name)

    @invariant()
    def each_slot_is_held_once_or_free(self) -> None:
        everyones = [slot for slots in self.held.values() for slot in slots]
        assert len(everyones) == len(set(everyones))
        assert self.pool.free == CAPACITY - len(everyones)
        assert all((name in self.pool) == (name in self.held) for name in "abcdef")


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_what_is_taken_together_lies_together_where_there_is_room() -> None:
    pool = SlotPool(8)
    assert pool.take("a", 2) == [0, 1]
    assert pool.take("b", 3) == [2, 3, 4]
    pool.give_back("a")
    assert pool.take("c", 3) == [5, 6, 7]
    assert pool.take("d", 2) == [0, 1]
