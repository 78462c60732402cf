from collections.abc import Sequence
from threading import Thread

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from neuron_pd.core.lease import LeaseEnd, Leases, Refused


def opened(deadline: float = 10.0, **kwargs: object) -> tuple[Leases[int], str]:
    book: Leases[int] = Leases()
    return book, book.open("h", [1, 2], deadline, **kwargs).id  # type: ignore[arg-type]


def test_what_the_workers_let_go_of_by_themselves_was_read():
    book, lease = opened()
    ended = book.end(lease)
    assert ended is not None
    assert (ended.how, ended.lease.blocks) == (LeaseEnd.READ, (1, 2))
    assert book.ended[LeaseEnd.READ] == 1


def test_an_end_comes_once():
    book, lease = opened()
    assert book.end(lease)
    assert book.end(lease) is None
    assert sum(book.ended.values()) == 1
    assert book.give_back(lease) == 0


def test_a_lease_given_back_holds_its_blocks_until_the_workers_let_go():
    book, lease = opened()
    assert book.give_back(lease) == 1
    assert book.give_back(lease) == 0
    assert book.pinned_blocks == 2
    assert book.take_closing() == [lease]
    assert book.take_closing() == []
    assert book.end(lease).how is LeaseEnd.RELEASED
    assert book.pinned_blocks == 0


def test_the_first_claim_is_the_only_one():
    book, lease = opened()
    assert book.claim(lease, "a", now=1.0, seconds=30) == 31.0
    assert book.claim(lease, "b", now=2.0, seconds=30) is Refused.TAKEN
    assert book.claim(lease, "a", now=3.0, seconds=30) == 33.0  # again: prolonged


def test_a_claim_never_shortens_a_lease():
    book, lease = opened(deadline=480.0)
    assert book.claim(lease, "a", now=1.0, seconds=30) == 480.0


def test_nothing_is_claimed_that_is_over_or_closing():
    book, lease = opened(deadline=10.0)
    assert book.claim("another", "a", now=1.0, seconds=30) is Refused.GONE
    assert book.claim(lease, "a", now=10.0, seconds=30) is Refused.GONE
    book.give_back(lease)
    assert book.claim(lease, "a", now=1.0, seconds=30) is Refused.GONE
    book.end(lease)
    assert book.claim(lease, "a", now=1.0, seconds=30) is Refused.GONE


def test_a_claimed_lease_is_given_back_by_its_reader_only():
    book, lease = opened()
    book.claim(lease, "a", now=1.0, seconds=30)
    assert book.give_back(lease) == 0
    assert book.give_back("h", reader="b") == 0
    assert book.give_back(lease, reader="a") == 1


def test_the_deadline_ends_a_claimed_lease_too():
    book, lease = opened(deadline=10.0)
    book.claim(lease, "a", now=5.0, seconds=30)
    assert book.expire(now=34.9) == []
    assert [due.id for due in book.expire(now=35.0)] == [lease]
    assert book.end(lease).how is LeaseEnd.EXPIRED


def test_renewing_prolongs_what_is_still_open():
    book, lease = opened(deadline=10.0)
    assert [renewed.id for renewed in book.renew("h", deadline=40.0, now=9.0)] == [lease]
    assert book.expire(now=39.0) == []
    assert book.renew(lease, deadline=80.0, now=40.0) == []
    assert book.renew("another", deadline=80.0, now=1.0) == []


def test_the_oldest_retained_lease_is_given_up_first_and_never_a_claimed_one():
    book: Leases[int] = Leases()
    lease = book.open("h", [9], 10.0)
    old, middle, new = (book.open(name, [n], 100.0, retained=True) for n, name in enumerate("abc"))
    book.claim(old.id, "reader", now=1.0, seconds=30)
    assert book.retained_blocks == 3
    assert book.give_up_oldest()
    assert book.take_closing() == [middle.id]
    assert book.give_up_oldest()
    assert not book.give_up_oldest()
    assert book.retained_blocks == 1
    assert book.end(new.id).how is LeaseEnd.GIVEN_UP
    assert lease.id in book


def test_of_many_readers_at_once_one_wins():
    book, lease = opened()
    won: list[str] = []

    def read(name: str) -> None:
        if not isinstance(book.claim(lease, name, now=1.0, seconds=30), Refused):
            won.append(name)

    threads = [Thread(target=read, args=(str(n),)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


class LeaseMachine(RuleBasedStateMachine):
    """Any order of open, claim, give back, give up, expire and end: held exactly until it ends, read by one at most."""

    leases = Bundle("leases")
    over = Bundle("over")

    def __init__(self) -> None:
        super().__init__()
        self.book: Leases[int] = Leases()
        self.now = 0.0
        self.blocks: dict[str, Sequence[int]] = {}
        self.readers: dict[str, str] = {}
        self.closing: set[str] = set()
        self.told: set[str] = set()

    @rule(
        target=leases, handle=st.sampled_from("ab"), blocks=st.lists(st.integers(0, 5), max_size=3), kept=st.booleans()
    )
    def open(self, handle: str, blocks: list[int], kept: bool) -> str:
        lease = self.book.open(handle, blocks, self.now + 10, retained=kept).id
        self.blocks[lease] = blocks
        return lease

    @rule(lease=leases, reader=st.sampled_from("xy"))
    def claim(self, lease: str, reader: str) -> None:
        answer = self.book.claim(lease, reader, self.now, 5)
        if not isinstance(answer, Refused):
            assert lease not in self.closing
            assert answer >= self.now + 5
            assert self.readers.setdefault(lease, reader) == reader

    @rule(lease=leases, reader=st.sampled_from([None, "x", "y"]))
    def give_back(self, lease: str, reader: str | None) -> None:
        if self.book.give_back(lease, reader):
            assert self.readers.get(lease, reader) == reader
            self.closing.add(lease)

    @rule()
    def give_up(self) -> None:
        self.book.give_up_oldest()
        self.tell()

    @rule(seconds=st.floats(0, 8))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.closing.update(lease.id for lease in self.book.expire(self.now))

    @rule()
    def tell(self) -> None:
        told = self.book.take_closing()
        assert not self.told & set(told), "told twice"
        self.told.update(told)
        self.closing.update(told)

    @rule(target=over, lease=consumes(leases))
    def end(self, lease: str) -> str:
        ended = self.book.end(lease)
        assert ended is not None
        assert list(ended.lease.blocks) == self.blocks.pop(lease)
        assert (ended.how is LeaseEnd.READ) == (ended.lease.closing is None)
        return lease

    @rule(lease=over)
    def nothing_comes_after_the_end(self, lease: str) -> None:
        assert self.book.end(lease) is None
        assert self.book.claim(lease, "x", self.now, 5) is Refused.GONE
        assert self.book.give_back(lease) == 0

    @invariant()
    def held_exactly_until_the_end(self) -> None:
        assert self.book.pinned_blocks == sum(len(blocks) for blocks in self.blocks.values())
        assert len(self.book) == len(self.blocks)


TestLeaseMachine = LeaseMachine.TestCase
