"""The store in this process: its bound, its time, its size."""

import gc
import tracemalloc
from collections.abc import Coroutine
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neuron_pd.proxy.store import Known, MemoryStore, Offer, memory

TTL, MOST = 10.0, 8


def now(call: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited")


class Bounded(RuleBasedStateMachine):
    """Never more than the bound, never an expired entry, and the latest half of the bound always there."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.store = MemoryStore(MOST, TTL, lambda: self.time)
        self.model: dict[bytes, tuple[float, Known]] = {}

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.time += seconds

    @rule(number=st.integers(0, 20))
    def put(self, number: int) -> None:
        known = Known("http://d", uuid4().hex)
        now(self.store.put([bytes([number])], known))
        self._use(bytes([number]), known)

    @rule(number=st.integers(0, 20))
    def first(self, number: int) -> None:
        key, found = bytes([number]), now(self.store.first([bytes([number])]))
        used, known = self.model.get(key, (-TTL, None))
        latest = list(self.model)[-MOST // 2 :]
        if used + TTL <= self.time:
            assert found is None
        elif key in latest:
            assert found == known
        else:
            assert found in (None, known)
        if found is not None:
            self._use(key, found)

    @rule()
    def expire(self) -> None:
        self.store.expire()
        if all(used + TTL <= self.time for used, _ in self.model.values()):
            self.store.expire()
            assert len(self.store) == 0

    @invariant()
    def bounded(self) -> None:
        assert len(self.store) <= MOST

    def _use(self, key: bytes, known: Known) -> None:
        self.model.pop(key, None)
        self.model[key] = (self.time, known)


TestBounded = Bounded.TestCase
TestBounded.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.slow
def test_conversations_stay_within_the_bound_and_cost_what_is_said() -> None:
    store = MemoryStore(4_000, 3600)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(10_000):
            now(store.put([number.to_bytes(15, "big")], Known("http://d", uuid4().hex, "http://p", number)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 3_000 <= len(store) <= 4_000
    assert held / len(store) < 250
    assert now(store.first([(5_999).to_bytes(15, "big")])) is None
    assert now(store.first([(9_999).to_bytes(15, "big")])).tokens == 9_999


def test_expiry_frees_offers_that_nobody_took() -> None:
    time = 0.0
    store = MemoryStore(100, TTL, lambda: time)
    handle = uuid4().hex
    now(store.put([b"k"], Known("http://d", handle), Offer(b"x" * 1000, 5.0)))
    time = 6.0
    store.expire()
    assert store._offered == 0
    assert now(store.take(handle)) is None
    assert now(store.first([b"k"])) is not None


def test_offers_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "OFFER_BYTES", 2500)
    store, handles = MemoryStore(100, TTL), [uuid4().hex for _ in range(4)]
    for handle in handles:
        now(store.put([handle.encode()], Known("http://d", handle), Offer(b"x" * 1000, 5.0)))
    taken = [now(store.take(handle)) is not None for handle in handles]
    assert taken == [False, False, True, True]


def test_engines_that_came_and_went_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_URLS", 10)
    store = MemoryStore(100, TTL)
    for number in range(100):
        known = Known(f"http://d{number}", uuid4().hex, f"http://p{number}")
        now(store.put([b"k"], known))
        assert now(store.first([b"k"])) == known
    assert len(store._urls) <= 10
