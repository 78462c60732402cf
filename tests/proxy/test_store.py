"""The store of conversations, as a state machine against a plain model."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neuron_pd.proxy.store import Known, MemoryStore

KEYS = st.sampled_from([bytes([number]) for number in range(8)])
SOME = st.lists(KEYS, min_size=1, max_size=3)
TTL, MOST = 10.0, 5


def now(call: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited")


class Remembering(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.store = MemoryStore(MOST, TTL, lambda: self.time)
        self.model: dict[bytes, tuple[float, Known]] = {}
        self.count = 0

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.time += seconds

    @rule(keys=SOME)
    def put(self, keys: list[bytes]) -> None:
        self.count += 1
        known = Known("http://d", str(self.count))
        now(self.store.put(keys, known))
        self._forget_expired()
        for key in keys:
            self._use(key, known)
        while len(self.model) > MOST:
            del self.model[next(iter(self.model))]

    @rule(keys=SOME)
    def first(self, keys: list[bytes]) -> None:
        self._forget_expired()
        expected = next((key for key in keys if key in self.model), None)
        found = now(self.store.first(keys))
        if expected is None:
            assert found is None
        else:
            assert found == self.model[expected][1]
            self._use(expected, found)

    @rule(keys=SOME)
    def drop(self, keys: list[bytes]) -> None:
        now(self.store.drop(keys))
        for key in keys:
            self.model.pop(key, None)

    @rule()
    def expire(self) -> None:
        self.store.expire()
        self._forget_expired()
        assert len(self.store) == len(self.model)

    @invariant()
    def bounded(self) -> None:
        assert len(self.store) <= MOST

    def _use(self, key: bytes, known: Known) -> None:
        self.model.pop(key, None)
        self.model[key] = (self.time + TTL, known)

    def _forget_expired(self) -> None:
        self.model = {key: entry for key, entry in self.model.items() if entry[0] > self.time}


TestRemembering = Remembering.TestCase
TestRemembering.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_hundred_thousand_conversations_stay_within_the_bound() -> None:
    async def fill() -> int:
        store = MemoryStore(10_000, 3600)
        for number in range(100_000):
            await store.put([number.to_bytes(16, "big")], Known("http://d", "h"))
        assert await store.first([(89_999).to_bytes(16, "big")]) is None
        assert await store.first([(90_000).to_bytes(16, "big")]) is not None
        return len(store)

    assert asyncio.run(fill()) == 10_000
