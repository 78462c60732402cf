"""The pools' life, as a state machine: engines join, drain, leave and fail, while requests run."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from neuron_pd.errors import UsageError
from neuron_pd.proxy.breaker import Breaker
from neuron_pd.proxy.engines import Balance, Engine, Engines, Role, Target
from neuron_pd.proxy.errors import Refusal
from neuron_pd.proxy.http import ConnectFailed, Origin, UpstreamLost
from neuron_pd.proxy.pools.roster import Roster
from neuron_pd.proxy.pools.source import Member

LINGER = 60.0
HOSTS = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"])
ROLES = st.sampled_from(list(Role))
PORTS = {Role.PREFILL: 8100, Role.DECODE: 8200}


def target(role: Role, host: str, kv_host: str = "") -> Target:
    return Target(Origin(host, PORTS[role]), kv_host or host)


class Life(RuleBasedStateMachine):
    """Against a plain model: who is named by whom, who is barred, who is drained."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.engines = Engines(balance=Balance(1, 1.0))
        self.roster = Roster(self.engines, self.make, lambda: self.now, LINGER)
        self.named: dict[str, set[tuple[Role, str]]] = {"a": set(), "b": set(), "admin": set()}
        self.barred: set[tuple[Role, str]] = set()
        self.drained: set[tuple[Role, str]] = set()
        self.in_flight: list[tuple[Engine, int]] = []

    def make(self, role: Role, where: Target) -> Engine:
        return Engine(role, where.origin, Breaker(lambda: self.now), where.kv_host)

    @property
    def wanted(self) -> set[tuple[Role, str]]:
        return set.union(*self.named.values()) - self.barred

    @rule(source=st.sampled_from(["a", "b"]), members=st.sets(st.tuples(ROLES, HOSTS), max_size=4))
    def source_says(self, source: str, members: set[tuple[Role, str]]) -> None:
        self.named[source] = members
        self.roster.says(source, [Member(role, target(role, host)) for role, host in members])

    @rule(source=st.sampled_from(["a", "b"]))
    def source_fails_or_is_forgotten(self, source: str) -> None:
        before = {engine.url for engine in self.engines.every}
        self.roster.fails(source, "unreadable")
        assert {engine.url for engine in self.engines.every} == before
        assert self.roster.problems == {**self.roster.problems, source: "unreadable"}
        self.roster.forget(source)
        self.named[source] = set()
        assert source not in self.roster.problems

    @rule(role=ROLES, host=HOSTS)
    def operator_adds(self, role: Role, host: str) -> None:
        self.named["admin"].add((role, host))
        self.barred.discard((role, host))
        self.drained.discard((role, host))
        engine = self.roster.join(role, target(role, host))
        assert (engine.role, engine.origin.host, engine.left, engine.draining) == (role, host, False, False)

    @rule(data=st.data(), how=st.sampled_from(["leave", "drain", "undrain"]))
    def operator_changes(self, data: st.DataObject, how: str) -> None:
        here = [engine for engine in self.engines.every if not engine.left]
        if not here:
            return
        engine = data.draw(st.sampled_from(here))
        name = (engine.role, engine.origin.host)
        if how == "leave":
            self.barred.add(name)
            self.named["admin"].discard(name)
            self.roster.leave(engine)
        else:
            (self.drained.add if how == "drain" else self.drained.discard)(name)
            self.roster.drain(engine, on=how == "drain")

    @rule(role=ROLES, tokens=st.integers(1, 1000), data=st.data())
    def a_request_starts(self, role: Role, tokens: int, data: st.DataObject) -> None:
        """Whoever is chosen may be: it is in the pool, alive, and takes new turns."""
        pool = self.engines.prefill if role is Role.PREFILL else self.engines.decode
        avoid = data.draw(st.lists(st.sampled_from(pool), max_size=1)) if pool else []
        sticky = data.draw(st.sampled_from(["", *(engine.url for engine in pool), "http://10.9.9.9:1"]))
        usable = [engine for engine in pool if engine.usable and engine not in avoid]
        try:
            if role is Role.PREFILL:
                chosen = self.engines.for_prefill(avoid, sticky, data.draw(st.integers(0, 500)))
            else:
                chosen = self.engines.for_decode(sticky, avoid)
        except Refusal:
            assert not usable
            return
        assert chosen in usable
        assert (chosen.role, chosen.origin.host) in self.wanted
        weight = tokens if role is Role.PREFILL else 1
        chosen.begin(weight)
        self.in_flight.append((chosen, weight))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), outcome=st.sampled_from(["ok", "refused", "lost", "cancelled"]))
    def a_request_ends(self, data: st.DataObject, outcome: str) -> None:
        engine, weight = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        engine.end(weight)
        errors: dict[str, Any] = {"refused": ConnectFailed("no", refused=True), "lost": UpstreamLost("gone")}
        if outcome == "ok":
            engine.breaker.succeeded()
        elif outcome in errors:
            engine.failed(errors[outcome])

    @rule(data=st.data(), alive=st.booleans())
    def a_health_check(self, data: st.DataObject, alive: bool) -> None:
        if self.engines.every:
            data.draw(st.sampled_from(self.engines.every)).alive = alive

    @rule(seconds=st.sampled_from([0.5, 5.0, LINGER]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.roster.sweep()

    @invariant()
    def members_are_those_that_are_wanted(self) -> None:
        staying = {(engine.role, engine.origin.host) for engine in self.engines.every if not engine.left}
        assert staying == self.wanted
        draining = {(one.role, one.origin.host) for one in self.engines.every if one.draining and not one.left}
        assert draining == self.drained & self.wanted

    @invariant()
    def loads_are_what_is_in_flight(self) -> None:
        for engine in self.engines.every:
            weights = [weight for one, weight in self.in_flight if one is engine]
            assert (engine.load, engine.requests) == (sum(weights), len(weights))

    @invariant()
    def one_engine_an_address_and_none_is_dropped_in_flight(self) -> None:
        every = self.engines.every
        assert len({(engine.role, engine.url) for engine in every}) == len(every)
        assert all(engine in every for engine, _ in self.in_flight)

    def teardown(self) -> None:
        """Whatever happened, nothing stays once all have left and ended."""
        for engine, weight in self.in_flight:
            engine.end(weight)
        for engine in [one for one in self.engines.every if not one.left]:
            self.roster.leave(engine)
        self.now += LINGER
        self.roster.sweep()
        assert not self.engines.every
        assert not self.roster._left


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def roster() -> tuple[Roster, list[float]]:
    now = [0.0]
    engines = Engines()

    def make(role: Role, where: Target) -> Engine:
        return Engine(role, where.origin, Breaker(lambda: now[0]), where.kv_host, alive=True)

    return Roster(engines, make, lambda: now[0], LINGER), now


def test_what_a_leaving_engine_holds_can_be_read_for_a_while() -> None:
    people, now = roster()
    engine = people.join(Role.DECODE, target(Role.DECODE, "10.0.0.1"))
    people.leave(engine)
    people.sweep()
    assert (engine.usable, people.engines.holder(engine.url)) == (False, engine)
    now[0] = LINGER
    people.sweep()
    assert people.engines.holder(engine.url) is None


def test_a_dead_engine_that_left_is_dropped_at_once_but_never_in_flight() -> None:
    people, now = roster()
    engine = people.join(Role.DECODE, target(Role.DECODE, "10.0.0.1"))
    engine.begin(1)
    people.leave(engine)
    engine.alive = False
    now[0] = 10 * LINGER
    people.sweep()
    assert people.engines.every == [engine]
    engine.end(1)
    people.sweep()
    assert people.engines.every == []


def test_an_engine_that_comes_back_is_the_same_one_and_its_kv_host_follows() -> None:
    people, _ = roster()
    joined: list[int] = []
    people.changed = lambda: joined.append(1)
    people.says("file", [Member(Role.DECODE, target(Role.DECODE, "10.0.0.1"))])
    (engine,) = people.engines.every
    people.says("file", [])
    assert engine.left
    people.says("file", [Member(Role.DECODE, target(Role.DECODE, "10.0.0.1", "10.1.0.1"))])
    assert people.engines.every == [engine]
    assert (engine.left, engine.kv_host, len(joined)) == (False, "10.1.0.1", 2)


def test_one_address_has_one_role() -> None:
    people, _ = roster()
    place = Target(Origin("10.0.0.1", 9000), "10.0.0.1")
    people.says("file", [Member(Role.PREFILL, place)])
    people.says("dns", [Member(Role.DECODE, place)])
    assert [engine.role for engine in people.engines.every] == [Role.PREFILL]
    assert people.problems == {"dns": "http://10.0.0.1:9000 is prefill already, and cannot be decode too"}
    with pytest.raises(UsageError, match="is a prefill engine"):
        people.join(Role.DECODE, place)
    assert [engine.role for engine in people.engines.every] == [Role.PREFILL]


def test_the_file_may_drain() -> None:
    people, _ = roster()
    member = Member(Role.DECODE, target(Role.DECODE, "10.0.0.1"), draining=True)
    people.says("file", [member])
    (engine,) = people.engines.every
    assert (engine.draining, engine.usable, engine.answers) == (True, False, True)
    people.says("file", [member._replace(draining=False)])
    assert engine.usable
