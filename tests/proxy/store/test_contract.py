"""What every store promises: the same tests against each, and a state machine against a plain model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from neuron_pd.proxy.store import Known, MemoryStore, Offer, RedisStore, Store
from tests.fakes.redis import RedisServer

TTL = 60.0
KINDS = ("memory", "redis")


def never(operation: str, kind: str) -> None:
    raise AssertionError(f"{operation} failed: {kind}")


def make(kind: str, redis: RedisServer, ttl: float = TTL) -> Store:
    return MemoryStore(10_000, ttl) if kind == "memory" else RedisStore(redis.url, ttl, 5.0, never)


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, redis: RedisServer) -> AsyncIterator[Store]:
    store = make(request.param, redis)
    yield store
    await store.close()


def known(**more: Any) -> Known:
    return Known("http://d:1", uuid4().hex, **more)


def key() -> bytes:
    return uuid4().bytes[:15]


async def test_what_was_put_is_found_whole_under_each_key(store: Store) -> None:
    one, other, what = key(), key(), known(prefill="http://p:1", tokens=123_456)
    await store.put([one, other], what)
    assert await store.first([key(), other]) == what
    assert await store.first([one]) == what
    assert await store.first([key()]) is None


async def test_the_first_key_that_is_known_decides(store: Store) -> None:
    keys, entries = [key(), key(), key()], [known(), known()]
    await store.put([keys[2]], entries[0])
    await store.put([keys[1]], entries[1])
    assert await store.first(keys) == entries[1]


async def test_a_later_turn_takes_the_place_of_an_earlier_one(store: Store) -> None:
    mine, later = key(), known()
    await store.put([mine], known())
    await store.put([mine], later)
    assert await store.first([mine]) == later


async def test_what_is_to_be_forgotten_is(store: Store) -> None:
    old, new = key(), key()
    await store.put([old], known())
    await store.put([new], known(), forget=[old, key()])
    assert await store.first([old]) is None
    assert await store.first([new]) is not None


async def test_dropped_entries_are_named_once(store: Store) -> None:
    keys, what = [key(), key()], known()
    await store.put(keys, what)
    assert await store.drop([*keys, key()]) == [what]
    assert await store.first(keys) is None
    assert await store.drop(keys) == []


async def test_an_offer_is_taken_once(store: Store) -> None:
    what = known()
    await store.put([key()], what, Offer(b'{"remote_block_ids":[[1]]}', 60.0))
    taken = await asyncio.gather(*(store.take(what.handle) for _ in range(20)))
    assert sorted(taken, key=bool) == [None] * 19 + [b'{"remote_block_ids":[[1]]}']
    assert await store.take(uuid4().hex) is None


async def test_an_offer_lasts_its_own_time(store: Store) -> None:
    what, mine = known(), key()
    await store.put([mine], what, Offer(b"{}", 0.0))
    assert await store.take(what.handle) is None
    assert await store.first([mine]) == what


@pytest.mark.parametrize("kind", KINDS)
async def test_entries_last_from_their_last_use(kind: str, redis: RedisServer) -> None:
    store, mine = make(kind, redis, ttl=0.3), key()
    await store.put([mine], known())
    for _ in range(4):
        await asyncio.sleep(0.1)
        if await store.first([mine]) is None:
            pytest.skip("this machine paused for longer than an entry lasts")
    await asyncio.sleep(0.5)
    assert await store.first([mine]) is None
    await store.close()


KEYS = st.sampled_from([bytes([number]) * 15 for number in range(6)])
SOME = st.lists(KEYS, min_size=1, max_size=3)


class Remembering(RuleBasedStateMachine):
    """A store, and a dictionary that says what it should hold."""

    make: Callable[[], Store]
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.store = type(self).make()
        self.model: dict[bytes, Known] = {}
        self.offers: dict[str, bytes] = {}
        self.handles: list[str] = []
        # Redis is shared by all examples: each begins with what the keys hold forgotten.
        self.run(self.store.drop([bytes([number]) * 15 for number in range(6)]))

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    @rule(keys=SOME, forget=st.lists(KEYS, max_size=2), offered=st.booleans())
    def put(self, keys: list[bytes], forget: list[bytes], offered: bool) -> None:
        what = known()
        self.handles.append(what.handle)
        self.run(self.store.put(keys, what, Offer(what.handle.encode(), 60.0) if offered else None, forget))
        for gone in forget:
            self.model.pop(gone, None)
        self.model.update(dict.fromkeys(keys, what))
        if offered:
            self.offers[what.handle] = what.handle.encode()

    @rule(keys=SOME)
    def first(self, keys: list[bytes]) -> None:
        expected = next((self.model[one] for one in keys if one in self.model), None)
        assert self.run(self.store.first(keys)) == expected

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        if self.handles:
            handle = data.draw(st.sampled_from(self.handles))
            assert self.run(self.store.take(handle)) == self.offers.pop(handle, None)

    @rule(keys=SOME)
    def drop(self, keys: list[bytes]) -> None:
        expected = dict.fromkeys(self.model.pop(one) for one in dict.fromkeys(keys) if one in self.model)
        assert self.run(self.store.drop(keys)) == list(expected)

    @rule()
    def expire(self) -> None:
        self.store.expire()

    def teardown(self) -> None:
        self.run(self.store.close())


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("kind", KINDS)
def test_as_a_plain_dictionary(kind: str, redis: RedisServer, loop: asyncio.AbstractEventLoop) -> None:
    machine = type("Machine", (Remembering,), {"make": staticmethod(lambda: make(kind, redis)), "loop": loop})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
