from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from neuron_pd.core.lease import LeaseEnd, Leases


class Pool:
    """A pool of counted references that refuses to free what nobody holds."""

    def __init__(self) -> None:
        self.references: Counter[int] = Counter()

    def pin(self, blocks: Sequence[int]) -> None:
        self.references.update(blocks)

    def unpin(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            assert self.references[block] > 0, "freed twice"
            self.references[block] -= 1

    @property
    def held(self) -> int:
        return sum(self.references.values())


def leases() -> tuple[Leases[int], Pool]:
    pool = Pool()
    return Leases(pool.pin, pool.unpin), pool


@pytest.mark.parametrize(("now", "how"), [(9.9, LeaseEnd.READ), (10.0, LeaseEnd.EXPIRED)])
def test_an_end_before_the_deadline_is_a_read(now: float, how: LeaseEnd) -> None:
    book, pool = leases()
    lease = book.open("h", [1, 2], deadline=10.0)
    assert book.end(lease.id, now) is how
    assert pool.held == 0
    assert book.ended[how] == 1


def test_a_lease_given_back_holds_its_blocks_until_no_worker_knows_it() -> None:
    book, pool = leases()
    lease = book.open("h", [1, 2], deadline=10.0)
    assert book.give_back(lease.id)
    assert not book.give_back(lease.id)
    assert pool.held == 2
    assert book.end(lease.id, 1.0) is LeaseEnd.RELEASED
    assert pool.held == 0


def test_what_comes_after_the_end_changes_nothing() -> None:
    book, pool = leases()
    lease = book.open("h", [1], deadline=10.0)
    book.end(lease.id, 1.0)
    assert book.end(lease.id, 1.0) is None
    assert not book.give_back(lease.id)
    assert pool.held == 0
    assert sum(book.ended.values()) == 1


class LeaseMachine(RuleBasedStateMachine):
    """Any order of open, give back, end and end again: every block is pinned exactly while a lease over it is open."""

    open_leases = Bundle("open_leases")
    ended_leases = Bundle("ended_leases")

    def __init__(self) -> None:
        super().__init__()
        self.book, self.pool = leases()
        self.now = 0.0
        self.model: dict[str, list[int]] = {}

    @rule(target=open_leases, handle=st.sampled_from("ab"), blocks=st.lists(st.integers(0, 5), min_size=1, unique=True))
    def open(self, handle: str, blocks: list[int]) -> str:
        lease = self.book.open(handle, blocks, self.now + 10)
        self.model[lease.id] = blocks
        assert lease.id in self.book.of_handle(handle)
        return lease.id

    @rule(lease=open_leases)
    def give_back(self, lease: str) -> None:
        self.book.give_back(lease)

    @rule(target=ended_leases, lease=consumes(open_leases))
    def end(self, lease: str) -> str:
        assert self.book.end(lease, self.now) is not None
        del self.model[lease]
        return lease

    @rule(lease=ended_leases)
    def end_again(self, lease: str) -> None:
        assert self.book.end(lease, self.now) is None

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def pinned_exactly_while_open(self) -> None:
        expected = Counter(block for blocks in self.model.values() for block in blocks)
        assert +self.pool.references == +expected
        assert self.book.pinned_blocks == expected.total()
        assert len(self.book) == len(self.model)


TestLeaseMachine = LeaseMachine.TestCase
