"""How many requests are let in, and what becomes of the others."""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from neuron_pd.proxy.admission import Admission, Bounds
from neuron_pd.proxy.errors import Refusal
from tests.proxy.conftest import Cluster, chat, running, until


def make(**bounds: float) -> tuple[Admission, list[str]]:
    refused: list[str] = []
    return Admission(Bounds(**bounds), refused.append), refused  # type: ignore[arg-type]


async def test_no_limit() -> None:
    admission, refused = make()
    for _ in range(1000):
        await admission.__aenter__()
    assert (admission.active, admission.waiting, refused) == (1000, 0, [])


async def test_full_line_is_429() -> None:
    admission, refused = make(concurrency=1, queue=1)
    await admission.__aenter__()
    waiting = asyncio.create_task(admission.__aenter__())
    await asyncio.sleep(0)
    with pytest.raises(Refusal) as refusal:
        await admission.__aenter__()
    assert (refusal.value.status, refusal.value.code) == (429, "too_many_requests")
    assert (b"retry-after", b"1") in refusal.value.headers
    assert refused == ["full"]
    await admission.__aexit__()
    await waiting
    assert admission.active == 1


async def test_too_long_in_line_is_429() -> None:
    admission, refused = make(concurrency=1, seconds=0.01)
    await admission.__aenter__()
    with pytest.raises(Refusal) as refusal:
        await admission.__aenter__()
    assert refusal.value.status == 429
    assert (refused, admission.waiting, admission.active) == (["late"], 0, 1)
    await admission.__aexit__()
    assert admission.active == 0


class Line(RuleBasedStateMachine):
    """Comers, goers, and those who give up: the limit holds, no place is lost, and the first come first."""

    LIMIT, QUEUE = 2, 3

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.admission, self.refused = make(concurrency=self.LIMIT, queue=self.QUEUE, seconds=60)
        self.inside: list[asyncio.Task[None]] = []
        self.line: list[asyncio.Task[None]] = []

    def teardown(self) -> None:
        for task in self.line:
            task.cancel()
        self.settle()
        self.loop.close()

    def settle(self) -> None:
        for _ in range(4):
            self.loop.run_until_complete(asyncio.sleep(0))
        while self.line and self.line[0].done():
            self.inside.append(self.line.pop(0))
        assert not any(task.done() for task in self.line)

    @rule()
    def come(self) -> None:
        full = len(self.line) >= self.QUEUE
        task = self.loop.create_task(self.admission.__aenter__())
        self.line.append(task)
        self.loop.run_until_complete(asyncio.sleep(0))
        if full:
            assert isinstance(self.line.pop().exception(), Refusal)
        self.settle()

    @precondition(lambda self: self.inside)
    @rule()
    def leave(self) -> None:
        self.inside.pop()
        self.loop.run_until_complete(self.admission.__aexit__())
        self.settle()

    @precondition(lambda self: self.line)
    @rule(data=st.data(), at_once=st.booleans())
    def give_up(self, data: st.DataObject, at_once: bool) -> None:
        """Perhaps in the moment in which a place becomes free."""
        task = self.line.pop(data.draw(st.integers(0, len(self.line) - 1)))
        if at_once and self.inside:
            self.inside.pop()
            with pytest.raises(StopIteration):
                self.admission.__aexit__().send(None)  # no other task runs in between
        task.cancel()
        self.settle()
        assert task.cancelled()

    @invariant()
    def the_limit_holds(self) -> None:
        assert self.admission.active == len(self.inside) <= self.LIMIT
        assert self.admission.waiting == len(self.line) <= self.QUEUE
        assert not self.line or len(self.inside) == self.LIMIT


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


async def test_four_times_the_concurrency_is_served_in_turn() -> None:
    async with running(admission=Bounds(concurrency=4)) as cluster:
        cluster.decode.faults.head_delay = 0.02
        answers = await asyncio.gather(*(cluster.post(chat(f"question {number}")) for number in range(16)))
        assert {answer.status for answer in answers} == {200}
        assert cluster.decode.peak <= 4
        assert (cluster.proxy.admission.active, cluster.proxy.admission.waiting) == (0, 0)


async def test_beyond_line_and_time_is_429_with_retry_after() -> None:
    async with running(admission=Bounds(concurrency=1, queue=1, seconds=0.2)) as cluster:
        cluster.decode.faults.hang = True
        held = asyncio.create_task(cluster.post(chat("hello", stream=True)))
        await until(lambda: cluster.decode.active)
        late = asyncio.create_task(cluster.post(chat("late")))
        await until(lambda: cluster.proxy.admission.waiting)
        for answer in (await cluster.post(chat("one too many")), await late):
            assert (answer.status, answer.json["error"]["type"]) == (429, "rate_limit_error")
            assert int(answer.headers["retry-after"]) >= 1
        assert (await cluster.get("/health")).status == 200
        metrics = (await cluster.get("/metrics")).raw
        assert b'neuron_pd_proxy_queue_refusals_total{reason="full"} 1.0' in metrics
        assert b'neuron_pd_proxy_queue_refusals_total{reason="late"} 1.0' in metrics
        assert b"neuron_pd_proxy_requests_admitted 1.0" in metrics
        held.cancel()
        await until(lambda: cluster.proxy.admission.active == 0)


async def test_a_client_that_leaves_the_line_leaves_nothing() -> None:
    async with running(admission=Bounds(concurrency=1)) as cluster:
        cluster.decode.faults.hang = True
        held = asyncio.create_task(cluster.post(chat("hello")))
        await until(lambda: cluster.decode.active)
        waiting = asyncio.create_task(cluster.post(chat("bye")))
        await until(lambda: cluster.proxy.admission.waiting)
        waiting.cancel()
        await until(lambda: not cluster.proxy.admission.waiting)
        assert len(cluster.prefill.generated) == 1
        held.cancel()
        await until(lambda: cluster.proxy.admission.active == 0)


async def test_passed_through_requests_count_too(cluster: Cluster) -> None:
    assert (await cluster.get("/v1/models")).status == 200
    assert cluster.proxy.admission.active == 0
