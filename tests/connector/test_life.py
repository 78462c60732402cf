"""Any order of events on D and P, on vLLM's real schedulers and block pools, with played workers.

The model keeps what the schedulers cannot know: which tokens' KV each of D's blocks really holds. After every event,
on both engines: a block's reference count is the number of requests and leases that hold it, and it is free exactly
when nobody does. At every read: the blocks hold the prefix of P's prompt. At the end: no block is held.

A retention mode adds rules in a subclass of `Life`, with its `settings`.
"""

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.connector.engine import BLOCK_SIZE, Engine

pytestmark = pytest.mark.vllm

LEASE_SECONDS, PIN_SECONDS = 30, 100
FAMILIES = 3
MOSTLY = st.sampled_from([True, True, False])
REAL_CLOCK = time.perf_counter
Tokens = tuple[int, ...]


class Clock:
    """time.perf_counter, which the test moves on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return REAL_CLOCK() + self.ahead


class Decode:
    """D, its worker, and what its blocks hold. `leases`: the blocks of those that were acquired and have not ended."""

    def __init__(self, model: Path, number: int, extra: dict[str, Any]) -> None:
        self.engine = Engine(model, "decode", kv_blocks=17, engine_id=f"decode-{number}", **extra)
        self.holds: dict[int, Tokens] = {}
        self.leases: dict[str, list[int]] = {}
        self.known: set[str] = set()  # what the worker waits to be read
        self.over: set[str] = set()  # read or to be let go of: reported in the next step
        self.running: list[str] = []
        update = self.engine.scheduler.update_from_output

        def watch(output: Any, *rest: Any) -> Any:
            self._compute(output.num_scheduled_tokens)
            return update(output, *rest)

        self.engine.scheduler.update_from_output = watch

    def step(self) -> None:
        """One step; the worker reports the leases that it has heard of being over."""
        reported = self.over & self.known
        self.engine.step(**({"finished_sending": set(reported)} if reported else {}))
        for lease in reported:
            self.leases.pop(lease, None)
        metadata = self.engine.metadata
        self.known = (self.known | metadata.reqs_in_batch) - metadata.reqs_not_processed - reported
        self.over = (self.over - reported) | set(metadata.neuron_pd_given_back)
        self.running = [name for name in self.running if name not in self.engine.finished]

    def stop(self) -> None:
        """Nobody can ask it any more."""
        Engine.listening = {peer: engine for peer, engine in Engine.listening.items() if engine is not self.engine}

    def _compute(self, scheduled: Iterable[str]) -> None:
        """What the step writes: the KV of the scheduled requests' tokens, into their blocks."""
        held = tables(self.engine)
        for name in scheduled:
            request = self.engine.scheduler.requests[name]
            written = request.all_token_ids[: request.num_computed_tokens]
            for index, block in enumerate(held[name][: -(-len(written) // BLOCK_SIZE)]):
                self.holds[block] = tuple(written[: (index + 1) * BLOCK_SIZE])


class Read:
    """P's worker at work: which of D's blocks it copies for which request, for which tokens, and until when."""

    def __init__(self, meta: Any, prompt: Tokens, source: Decode) -> None:
        self.lease: str = meta.remote.request_id
        self.local: list[int] = list(meta.local_block_ids[0])
        groups = list(meta.remote.block_ids[0])
        self.blocks, self.skipped = groups[-len(self.local) :], len(groups) - len(self.local)
        self.prompt, self.source = prompt, source
        self.deadline = meta.remote.blocks_expiry_time

    def check(self) -> None:
        """The blocks hold this prompt's KV."""
        for index, block in enumerate(self.blocks, self.skipped):
            assert self.source.holds[block] == self.prompt[: (index + 1) * BLOCK_SIZE], f"block {block} is another's"


class Prefill:
    """P and its worker. It keeps a prefix cache, so some of a prompt may be there already."""

    def __init__(self, model: Path, extra: dict[str, Any]) -> None:
        extra = {"kv_recompute_threshold": 1, "prefix_caching": True, **extra}
        self.engine = Engine(model, "prefill", kv_blocks=40, **extra)
        self.reads: dict[str, Read] = {}
        self.sources: dict[str, Decode] = {}
        self.running: list[str] = []
        self.handed_off: list[str] = []

    def step(self, **worker: Any) -> None:
        self.engine.step(**worker)
        for name, meta in self.engine.metadata.reqs_to_recv.items():
            source = self.sources[name]
            if not any(meta.local_block_ids):
                source.over.add(meta.remote.request_id)
                continue
            prompt = tuple(self.engine.scheduler.requests[name].prompt_token_ids)
            self.reads[name] = Read(meta, prompt, source)
        for name in [name for name in self.running if name in self.engine.finished]:
            self.running.remove(name)
            if self.engine.finished[name]:
                self.handed_off.append(name)


def tables(engine: Engine) -> dict[str, list[int]]:
    """The block ids of every request that has some."""
    groups = engine.scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
    return {name: [block.block_id for block in blocks] for name, blocks in groups.items() if blocks}


def check_pool(engine: Engine, leases: list[list[int]]) -> None:
    """Every block is held as often as somebody holds it, and free exactly when nobody does."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    expected = Counter(block for blocks in [*tables(engine).values(), *leases] for block in blocks)
    blocks = [block for block in pool.blocks if block is not pool.null_block]
    assert {block.block_id: block.ref_cnt for block in blocks if block.ref_cnt} == expected
    free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    assert len(free) == len(set(free)) == pool.get_num_free_blocks()
    assert set(free) == {block.block_id for block in blocks if not block.ref_cnt}


Lease = tuple[str, dict[str, Any], Decode]


class Life(RuleBasedStateMachine):
    """Lease retention. A router that keeps to the protocol drives both engines; everything else may happen."""

    model: ClassVar[Path]
    settings: ClassVar[dict[str, Any]] = {"read_lease_seconds": LEASE_SECONDS}

    handles = Bundle("handles")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.clock = time.perf_counter = Clock()  # type: ignore[assignment]
        self.numbers = 0
        self.requests: dict[str, Any] = {}  # by the handle of the turn

    @initialize()
    def start(self) -> None:
        Engine.listening = {}
        self.decode = Decode(self.model, 0, self.settings)
        self.prefill = Prefill(self.model, self.settings)

    def name(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind}-{self.numbers}"

    def spoken(self, handle: str) -> Tokens:
        """All tokens of a turn."""
        return tuple(self.requests[handle].all_token_ids)

    def has_much_to_lose(self) -> bool:
        return bool(self.decode.engine.stats()["ledger_records"] >= 4)

    # D

    @rule(
        target=handles,
        family=st.integers(0, FAMILIES - 1),
        length=st.sampled_from([96, 64, 110, 40, 17, 3]),
        reply=st.sampled_from([8, 1, 30]),
        wait=MOSTLY,
    )
    def turn(self, family: int, length: int, reply: int, wait: bool) -> str:
        """A request on D, waited for or not; those of a family share their first tokens."""
        handle = self.name("handle")
        prompt = [family * 150 + position for position in range(length)]
        request = self.decode.engine.add(f"of-{handle}", prompt, {"neuron_pd_handle": handle}, max_tokens=reply)
        self.requests[handle] = request
        self.decode.running.append(request.request_id)
        for _ in range(60 * wait):  # leases may leave no room for it
            if request.request_id not in self.decode.running:
                break
            self.decode.step()
        return handle

    @rule(steps=st.integers(1, 12))
    def step_decode(self, steps: int) -> None:
        for _ in range(steps):
            self.decode.step()

    @rule(target=leases, handle=handles)
    def acquire(self, handle: str) -> Any:
        lease = self.lease(handle)
        return multiple() if lease is None else (handle, lease, self.decode)

    def lease(self, handle: str) -> dict[str, Any] | None:
        """What D leases of a turn: blocks that hold its first tokens."""
        answer = self.decode.engine.control("acquire", handle)
        if "reason" in answer:
            assert answer["reason"] in ("unknown_handle", "evicted")
            return None
        lease: dict[str, Any] = answer["kv_transfer_params"]
        blocks = list(lease["remote_block_ids"][0])
        self.decode.leases[lease["remote_request_id"]] = blocks
        for index, block in enumerate(blocks):
            assert self.decode.holds[block] == self.spoken(handle)[: (index + 1) * BLOCK_SIZE]
        return lease

    @rule(lease=leases)
    def give_back(self, lease: Lease) -> None:
        """The router thinks that nobody will read it; P may be about to, or at it."""
        self.decode.engine.control("release", lease[1]["remote_request_id"])

    @rule(handle=handles)
    def renew(self, handle: str) -> None:
        self.decode.engine.control("renew", handle)

    @rule(what=st.sampled_from(["evict", "restart_decode", "time_passes", "abort", "forget"]), data=st.data())
    def disturb(self, what: str, data: st.DataObject) -> None:
        getattr(self, what)(data)

    def forget(self, data: st.DataObject) -> None:
        """The conversation is over, as far as the router knows."""
        if not self.requests:
            return
        handle = data.draw(st.sampled_from(sorted(self.requests)))
        self.decode.engine.control("release", handle)
        assert self.decode.engine.control("acquire", handle) == {"reason": "unknown_handle"}

    def time_passes(self, data: st.DataObject) -> None:
        self.clock.ahead += data.draw(st.sampled_from([1, LEASE_SECONDS / 2, LEASE_SECONDS + 1, PIN_SECONDS]))

    def evict(self, _: st.DataObject) -> None:
        if self.has_much_to_lose():
            self.decode.engine.scheduler.reset_prefix_cache()

    def restart_decode(self, _: st.DataObject) -> None:
        """Nothing is remembered, and every read from the old one fails."""
        if self.has_much_to_lose():
            self.decode.stop()
            self.numbers += 1
            self.decode = Decode(self.model, self.numbers, self.settings)

    def abort(self, data: st.DataObject) -> None:
        """A client leaves, wherever its turn is."""
        if names := [*self.decode.running, *self.prefill.running]:
            name = data.draw(st.sampled_from(names))
            if name in self.prefill.running:
                self.abort_prefill(name)
            else:
                self.decode.running.remove(name)
                self.decode.engine.abort(name)

    # P

    @rule(
        offer=leases, keep=st.sampled_from([160, 96, 33, 0]), more=st.integers(1, 40), again=st.booleans(), wait=MOSTLY
    )
    def offer(self, offer: Lease, keep: int, more: int, again: bool, wait: bool) -> None:
        """A turn whose prompt shares its first `keep` tokens with the conversation; perhaps sent twice."""
        for _ in range(1 + again):
            self.send(offer, keep, more, wait)

    @rule(target=leases, handle=handles, keep=st.sampled_from([160, 96, 64, 33]), more=st.integers(1, 40), wait=MOSTLY)
    def next_turn(self, handle: str, keep: int, more: int, wait: bool) -> Any:
        """As a router does it: acquire, and offer to P at once."""
        if (lease := self.lease(handle)) is None:
            return multiple()
        self.send((handle, lease, self.decode), keep, more, wait)
        return (handle, lease, self.decode)

    def send(self, offer: Lease, keep: int, more: int, wait: bool) -> None:
        handle, lease, source = offer
        name = self.name("turn")
        self.prefill.sources[name] = source
        self.prefill.engine.add(name, [*self.spoken(handle)[:keep], *range(800, 800 + more)], dict(lease))
        self.prefill.running.append(name)
        self.prefill.step()
        if wait and name in self.prefill.reads:
            self.end_read(name, broken=False)

    @rule(steps=st.integers(1, 3))
    def step_prefill(self, steps: int) -> None:
        for _ in range(steps):
            self.prefill.step()

    @precondition(lambda self: self.prefill.reads)
    @rule(data=st.data(), broken=st.sampled_from([False, False, True]))
    def finish_read(self, data: st.DataObject, broken: bool) -> None:
        self.end_read(data.draw(st.sampled_from(sorted(self.prefill.reads))), broken)

    def end_read(self, name: str, broken: bool) -> None:
        """P's worker is done: it notifies D, unless the link broke. It fails what came after the lease's end."""
        read = self.prefill.reads.pop(name)
        if broken or read.source is not self.decode or time.perf_counter() >= read.deadline:
            self.prefill.step(finished_recving={name}, failed_recving={name}, invalid_block_ids=set(read.local))
            return
        read.check()
        read.source.over.add(read.lease)
        self.prefill.step(finished_recving={name})

    def abort_prefill(self, name: str) -> None:
        self.prefill.running.remove(name)
        self.prefill.engine.abort(name)

    @precondition(lambda self: self.prefill.handed_off)
    @rule(data=st.data(), read=st.booleans())
    def end_hand_off(self, data: st.DataObject, read: bool) -> None:
        """D has pulled P's blocks; or the router says that no D will."""
        name = data.draw(st.sampled_from(self.prefill.handed_off))
        self.prefill.handed_off.remove(name)
        if not read:
            assert self.prefill.engine.control("release", name) == 1
            self.prefill.step()
        self.prefill.step(finished_sending={name})

    # Always

    @invariant()
    def every_block_is_held_as_often_as_somebody_holds_it(self) -> None:
        if hasattr(self, "decode"):
            check_pool(self.decode.engine, self.held_blocks())
            check_pool(self.prefill.engine, [])

    def held_blocks(self) -> list[list[int]]:
        """What D's retention holds beside its requests."""
        return list(self.decode.leases.values())

    def teardown(self) -> None:
        try:
            if hasattr(self, "decode"):
                self.end_everything()
        finally:
            time.perf_counter = REAL_CLOCK

    def end_everything(self) -> None:
        """Clients leave, reads end, leases expire: nothing is held, and nothing is remembered of a turn."""
        for name in list(self.prefill.running):
            self.abort_prefill(name)
        for name in list(self.decode.running):
            self.decode.engine.abort(name)
        for name in list(self.prefill.reads):
            del self.prefill.reads[name]
            self.prefill.step(finished_recving={name})
        for name in self.prefill.handed_off:
            self.prefill.step(finished_sending={name})
        self.prefill.step()
        self.clock.ahead += PIN_SECONDS + LEASE_SECONDS
        for _ in range(3):
            self.decode.step()
        for engine in (self.decode.engine, self.prefill.engine):
            stats = engine.stats()
            assert (stats["kv_blocks_used"], stats["open_leases"], stats["pinned_blocks"]) == (0, 0, 0)
            assert not engine.scheduler.requests
            assert not engine.connector.reuse.legs


class PinnedLife(Life):
    """Pin retention: what a turn answers is offered as it is, and again, until its time or the budget is spent."""

    settings: ClassVar[dict[str, Any]] = {**Life.settings, "retention": "pin", "decoder_kv_blocks_ttl": PIN_SECONDS}

    @rule(handle=Life.handles, keep=st.sampled_from([160, 96, 64, 33]), more=st.integers(1, 40), wait=MOSTLY)
    def next_turn_of_pinned(self, handle: str, keep: int, more: int, wait: bool) -> None:
        if pinned := self.decode.engine.finished.get(f"of-{handle}"):
            self.send((handle, pinned, self.decode), keep, more, wait)


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PD_CONTROL_TOKEN", "token")


@pytest.mark.parametrize("life", [Life, PinnedLife])
def test_any_order(life: type[Life], model: Path) -> None:
    Life.model = model
    chosen = settings(max_examples=20, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(life, settings=chosen)
