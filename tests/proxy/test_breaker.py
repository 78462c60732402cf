"""The breaker's life, as a state machine against a plain model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neuron_pd.proxy.breaker import Breaker, State


class Life(RuleBasedStateMachine):
    """Time, requests and their outcomes in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = Breaker(lambda: self.now, threshold=3, cooldown=1.0, max_cooldown=8.0)
        self.in_a_row = 0

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def request_succeeds(self) -> None:
        if self.breaker.allows:
            self.breaker.sent()
            self.breaker.succeeded()
            self.in_a_row = 0
            assert self.breaker.state is State.CLOSED

    @rule()
    def request_fails(self) -> None:
        if self.breaker.allows:
            was = self.breaker.state
            self.breaker.sent()
            self.breaker.failed()
            self.in_a_row += 1
            if was is State.HALF_OPEN or self.in_a_row >= 3:
                assert self.breaker.state is State.OPEN

    @rule()
    def connection_refused(self) -> None:
        if self.breaker.allows:
            self.breaker.sent()
            self.breaker.trip()
            self.in_a_row += 1
            assert self.breaker.state is State.OPEN

    @rule()
    def request_is_forgotten(self) -> None:
        """Its client left: no outcome ever comes."""
        if self.breaker.allows:
            self.breaker.sent()

    @rule()
    def late_failure(self) -> None:
        """Of a request sent before it opened."""
        if self.breaker.state is State.OPEN:
            self.breaker.failed()
            self.in_a_row += 1

    @invariant()
    def open_lets_nothing_through(self) -> None:
        if self.breaker.state is State.OPEN:
            assert not self.breaker.allows
        if self.breaker.state is State.CLOSED:
            assert self.breaker.allows

    @invariant()
    def cooldown_is_bounded(self) -> None:
        assert 1.0 <= self.breaker.cooldown <= 8.0

    @invariant()
    def it_always_comes_back(self) -> None:
        later = self.now
        self.now += 2 * 8.0 + 0.1
        assert self.breaker.allows
        self.now = later


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_half_open_lets_one_through() -> None:
    now = 0.0
    breaker = Breaker(lambda: now, threshold=1, cooldown=1.0)
    breaker.failed()
    assert not breaker.allows
    now = 1.0
    assert breaker.state is State.HALF_OPEN
    assert breaker.allows
    breaker.sent()
    assert not breaker.allows
    breaker.failed()
    assert breaker.cooldown == 2.0
    now = 2.9
    assert not breaker.allows
    now = 3.0
    breaker.sent()
    breaker.succeeded()
    assert (breaker.state, breaker.cooldown) == (State.CLOSED, 1.0)


def test_a_success_forgives_failures() -> None:
    breaker = Breaker(lambda: 0.0, threshold=3)
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.state is State.CLOSED
