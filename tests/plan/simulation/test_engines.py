import pytest

from neuron_pd.plan.calibration import DecodeCost
from neuron_pd.plan.simulation.engines import Admission, DecodeEngine, PrefillEngine
from neuron_pd.plan.simulation.kernel import Kernel, Process

from ..truth import calibration

BY = calibration(decode=DecodeCost(0.1, per_sequence=0.05))


def decode(kernel: Kernel, blocks: int = 100, pin_budget: float = 1.0) -> DecodeEngine:
    return DecodeEngine(kernel, BY, blocks, max_num_seqs=8, pin_budget=pin_budget)


def turn(
    kernel: Kernel, engine: DecodeEngine, name: int, blocks: int, tokens: int, pin_for: float | None = None
) -> Process:
    yield from engine.enter(Admission(name, blocks))
    yield from engine.reply(0, tokens)
    engine.leave(name, blocks, blocks, pin_for)
    ended.append((name, round(kernel.now, 6)))


ended: list[tuple[int, float]] = []


@pytest.fixture(autouse=True)
def nothing_ended() -> None:
    ended.clear()


def test_a_prefill_engine_serves_one_after_another() -> None:
    kernel, seen = Kernel(), []
    engine = PrefillEngine(kernel, 0)

    def prompt(name: int) -> Process:
        yield from engine.compute(2.0)
        seen.append((name, kernel.now))

    for name in range(3):
        kernel.start(prompt(name), delay=name * 0.5)
    kernel.start(prompt(9), delay=20.0)
    kernel.run()
    assert seen == [(0, 2.0), (1, 4.0), (2, 6.0), (9, 22.0)]
    assert engine.busy_seconds == 8.0


def test_replies_are_slower_the_more_of_them_run() -> None:
    kernel = Kernel()
    engine = decode(kernel)
    kernel.start(turn(kernel, engine, 1, 10, 10))
    kernel.start(turn(kernel, engine, 2, 10, 10))
    kernel.run()
    assert ended == [(1, 1.0), (2, 1.5)]


def test_a_direct_prefill_stalls_the_replies_that_are_streaming() -> None:
    kernel = Kernel()
    engine = decode(kernel)

    def prefills() -> Process:
        yield 0.5
        yield from engine.prefill(3.0)

    kernel.start(turn(kernel, engine, 1, 10, 10))
    kernel.start(prefills())
    kernel.run()
    assert ended == [(1, 4.0)]


def test_a_sequence_without_room_waits_in_order() -> None:
    kernel = Kernel()
    engine = decode(kernel)
    for name, blocks in ((1, 80), (2, 50), (3, 10)):  # the third would fit, but is not first in line
        kernel.start(turn(kernel, engine, name, blocks, 10))
    kernel.run()
    assert ended == [(1, 1.0), (2, 2.5), (3, 2.5)]
    assert engine.pin_blocked == 0


def test_what_pins_alone_keep_waiting_is_counted() -> None:
    kernel = Kernel()
    engine = decode(kernel)
    kernel.start(turn(kernel, engine, 1, 80, 10, pin_for=30.0))
    kernel.start(turn(kernel, engine, 2, 50, 10))
    kernel.run()
    assert ended == [(1, 1.0), (2, 32.0)]
    assert engine.pin_blocked == pytest.approx(30.0)


def test_the_oldest_pin_is_given_up_first_but_not_one_that_is_read() -> None:
    kernel = Kernel()
    engine = decode(kernel, pin_budget=0.5)
    for name in (1, 2, 3):
        engine.pool.cache(name, 20)
        engine._pin(name, 100.0)
    assert [engine.pool.is_pinned(name) for name in (1, 2, 3)] == [False, True, True]
    with engine.reading(2):
        engine.pool.cache(4, 20)
        engine._pin(4, 100.0)
        assert [engine.pool.is_pinned(name) for name in (2, 3, 4)] == [True, False, True]
    assert not engine.pool.is_pinned(2)
    engine.pool.cache(5, 60)
    engine._pin(5, 100.0)
    assert not engine.pool.is_pinned(5)
    assert engine.pool.peak_pinned <= 50


def test_a_read_ends_the_pin_that_would_have_expired_later() -> None:
    kernel = Kernel()
    engine = decode(kernel)
    engine.pool.cache(1, 20)
    engine._pin(1, 5.0)
    with engine.reading(1):
        pass
    engine._pin(1, 50.0)
    kernel.start(turn(kernel, engine, 2, 90, 1))
    kernel.run()
    assert ended == [(2, 50.1)]
