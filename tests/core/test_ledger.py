from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neuron_pd.core.fingerprint import Fingerprint, Seed
from neuron_pd.core.ledger import RECORD_OVERHEAD_BYTES, Ledger, Record

HASH_BYTES = 32


def record(blocks: int) -> Record:
    chain = Fingerprint.of(range(blocks * 4), 4, Seed("tiny"))
    return Record(bytes(range(HASH_BYTES)) * blocks, HASH_BYTES, chain)


def test_a_record_knows_its_blocks_and_bytes() -> None:
    three = record(3)
    assert len(three) == 3
    assert list(three.block_hashes()) == [bytes(range(HASH_BYTES))] * 3
    assert three.nbytes == 3 * (HASH_BYTES + 8) + RECORD_OVERHEAD_BYTES


def test_a_record_over_the_bound_is_not_kept_and_drops_no_other() -> None:
    ledger = Ledger(max_bytes=record(2).nbytes)
    ledger.put("small", record(1))
    ledger.put("big", record(100))
    assert "big" not in ledger
    assert "small" in ledger
    assert ledger.nbytes == record(1).nbytes


class LedgerMachine(RuleBasedStateMachine):
    """Against a plain list of (handle, record), least recently used first."""

    BOUND = record(1).nbytes * 4

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self.BOUND)
        self.model: list[tuple[str, Record]] = []

    handles = st.sampled_from("abcdef")

    def remove(self, handle: str) -> Record | None:
        found = next((kept for name, kept in self.model if name == handle), None)
        self.model = [(name, kept) for name, kept in self.model if name != handle]
        return found

    @rule(handle=handles, blocks=st.integers(1, 90))
    def put(self, handle: str, blocks: int) -> None:
        self.ledger.put(handle, record(blocks))
        self.remove(handle)
        if record(blocks).nbytes <= self.BOUND:
            self.model.append((handle, record(blocks)))
        while sum(kept.nbytes for _, kept in self.model) > self.BOUND:
            self.model.pop(0)

    @rule(handle=handles)
    def get(self, handle: str) -> None:
        found = self.remove(handle)
        assert self.ledger.get(handle) == found
        if found is not None:
            self.model.append((handle, found))

    @rule(handle=handles)
    def drop(self, handle: str) -> None:
        assert self.ledger.drop(handle) == (self.remove(handle) is not None)

    @invariant()
    def agrees(self) -> None:
        assert len(self.ledger) == len(self.model)
        assert all(name in self.ledger for name, _ in self.model)
        assert self.ledger.nbytes == sum(kept.nbytes for _, kept in self.model) <= self.BOUND


TestLedgerMachine = LedgerMachine.TestCase
