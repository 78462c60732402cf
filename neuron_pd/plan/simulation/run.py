"""Conversations through simulated engines: every turn takes the steps that the proxy and the engines take."""

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import cycle

from neuron_pd.core.decision import Path, Prompt
from neuron_pd.errors import UsageError
from neuron_pd.plan.calibration import Calibration
from neuron_pd.plan.plan import decide
from neuron_pd.plan.simulation.engines import Admission, DecodeEngine, PrefillEngine
from neuron_pd.plan.simulation.kernel import Kernel, Process
from neuron_pd.plan.simulation.outcome import Outcome, Served
from neuron_pd.plan.simulation.workload import Cluster, Policy, Retention, Routing, Talk, Workload
from neuron_pd.plan.turn import Turn


def simulate(by: Calibration, workload: Workload, cluster: Cluster, policy: Policy) -> Outcome:
    """Run the whole workload. UsageError when a conversation's last turn does not fit D's pool."""
    return _Simulation(by, workload, cluster, policy).run()


class _Simulation:
    def __init__(self, by: Calibration, workload: Workload, cluster: Cluster, policy: Policy) -> None:
        self._by = by
        self._workload = workload
        self._policy = policy
        self._kernel = Kernel()
        cached = cluster.prefill_pool_tokens // by.layout.block_size
        blocks = cluster.pool_tokens // by.layout.block_size
        self._prefill = [PrefillEngine(self._kernel, cached) for _ in range(cluster.prefill)]
        self._decode = [
            DecodeEngine(self._kernel, by, blocks, cluster.max_num_seqs, policy.pin_budget)
            for _ in range(cluster.decode)
        ]
        self._next_decode = cycle(self._decode)
        self._home: dict[int, DecodeEngine] = {}
        self._served: list[Served] = []

    def run(self) -> Outcome:
        talks = list(self._workload.talks())
        longest = max(talk.first for talk in talks) + (self._workload.turns - 1) * self._growth
        if self._by.layout.blocks(longest + self._workload.reply) > self._decode[0].pool.total:
            pool = self._decode[0].pool.total * self._by.layout.block_size
            raise UsageError(f"the longest conversation has {longest:,} tokens, D's pool {pool:,}: raise --pool-tokens")
        if self._workload.rate is not None:
            for talk in talks:
                self._kernel.start(self._converse(talk), talk.begins)
        else:
            waiting = iter(talks)
            for _ in range(self._workload.clients):
                self._kernel.start(self._client(waiting))
        self._kernel.run()
        return Outcome(
            policy=self._policy,
            served=self._served,
            seconds=self._kernel.now,
            prefill_busy=sum(engine.busy_seconds for engine in self._prefill) / len(self._prefill),
            peak_pinned=max(engine.pool.peak_pinned / engine.pool.total for engine in self._decode),
        )

    @property
    def _growth(self) -> int:
        return self._workload.reply + self._workload.user

    def _client(self, talks: Iterator[Talk]) -> Process:
        for talk in talks:
            yield from self._converse(talk)

    def _converse(self, talk: Talk) -> Process:
        for number in range(1, self._workload.turns + 1):
            yield from self._turn(talk.index, number, talk.first + (number - 1) * self._growth)
            if number < self._workload.turns:
                yield talk.pauses[number - 1]

    def _turn(self, conversation: int, number: int, prompt: int) -> Process:
        began = self._kernel.now
        source, decode = self._home.get(conversation), self._choose_decode(conversation)
        prefill = min(self._prefill, key=lambda engine: engine.tokens_in_flight)
        history = prompt - self._workload.user if number > 1 else 0
        served = Served(conversation, number, prompt, history)
        served.local = min(
            prefill.cache.held(conversation) * self._by.layout.block_size, self._by.layout.whole(history)
        )
        if source is not None and self._policy.reuse:
            self._decide(served, source, decode)
        if served.path is not Path.DIRECT:
            yield from self._prefill_leg(served, prefill, source)
        yield from self._decode_leg(served, decode)
        served.ttft = self._kernel.now - began
        self._served.append(served)
        self._home[conversation] = decode
        yield from decode.reply(prompt, self._workload.reply)
        self._finish(served, decode)

    def _choose_decode(self, conversation: int) -> DecodeEngine:
        if self._policy.routing is Routing.ROUND_ROBIN:
            return next(self._next_decode)
        return self._home.get(conversation) or min(self._decode, key=lambda engine: engine.load)

    def _decide(self, served: Served, source: DecodeEngine, decode: DecodeEngine) -> None:
        """What D still has of the conversation, and the way that the product's decision takes with it."""
        if self._policy.retention is Retention.PIN and not source.pool.is_pinned(served.conversation):
            return
        served.offered = True
        held = min(
            source.pool.held(served.conversation) * self._by.layout.block_size, self._by.layout.whole(served.history)
        )
        direct = self._policy.direct and source is decode
        prompt = Prompt(served.prompt, held, served.local)
        served.path = decide(self._by, prompt, self._policy.threshold, decode.running, direct=direct)
        if served.path is Path.READ_BACK:
            served.reused = held - served.local
        elif served.path is Path.DIRECT:
            served.reused, served.local = held, 0

    def _prefill_leg(self, served: Served, prefill: PrefillEngine, source: DecodeEngine | None) -> Process:
        account = self._by.account(Turn(served.prompt, served.reused, served.local))
        prefill.tokens_in_flight += served.computed
        # D holds what it offered from the acquire until P has read it, or says that it will not.
        with source.reading(served.conversation) if source is not None and served.offered else nullcontext():
            yield account.host + account.acquire + account.transfer
        arrived = self._kernel.now
        yield from prefill.compute(account.compute)
        served.prefill_wait = self._kernel.now - arrived - account.compute
        prefill.tokens_in_flight -= served.computed
        prefill.cache.cache(served.conversation, served.prompt // self._by.layout.block_size)

    def _decode_leg(self, served: Served, decode: DecodeEngine) -> Process:
        arrived, blocked = self._kernel.now, decode.pin_blocked
        admission = Admission(served.conversation, self._by.layout.blocks(served.prompt + self._workload.reply))
        yield from decode.enter(admission)
        served.decode_wait = self._kernel.now - arrived
        served.retention_wait = decode.pin_blocked - blocked
        held = min(admission.held * self._by.layout.block_size, self._by.layout.whole(served.history))
        if served.path is Path.DIRECT:
            served.reused = held
            account = self._by.account(Turn(served.prompt, local=held, held=served.prompt))
            yield account.host
            yield from decode.prefill(account.compute)
        else:
            account = self._by.account(Turn(served.prompt, held=held))
        yield account.hand_off

    def _finish(self, served: Served, decode: DecodeEngine) -> None:
        left = served.prompt + self._workload.reply
        pin = self._policy.reuse and self._policy.retention is Retention.PIN
        ttl = self._policy.ttl if pin else None
        decode.leave(served.conversation, self._by.layout.blocks(left), left // self._by.layout.block_size, ttl)
