"""The scheduler side of a staging buffer: which block of a request is in which slot, and when.

Blocks that a peer may read are copied to slots before anyone learns of them: a prompt's in the step that ends its
prefill, a lease's in the step after it was asked for, and the acquire is answered when that is done. Blocks that are
read go to slots and from there to the device; their slots are taken when the read is queued. A slot is free again when
the peer has read it or will not (as `finished_sending` says), or when its contents are on the device.

Where NIXL registers the engine's own memory there is no pool, and every method passes through.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

from neuron_pd.buffers.slots import SlotPool
from neuron_pd.connector import compat
from neuron_pd.connector.stats import Counts

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler as Upstream
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request
else:
    Upstream = object

logger = init_logger("vllm.neuron_pd")

Groups = Sequence[Sequence[int]]
REFUSED = {"do_remote_prefill": False, "do_remote_decode": False}


class StagedTransfers(Upstream):
    """Over upstream's scheduler: device blocks on this side of it, slots of the staging buffer on the other."""

    counts: Counts
    _slots: SlotPool | None = None

    def configure_staging(self, slots: int | None) -> None:
        """Called once, after upstream's constructor. None: NIXL registers the engine's own memory."""
        self._slots = None if slots is None else SlotPool(slots)
        self._prompts: dict[str, Request] = {}
        self._prompt_blocks: dict[str, list[list[int]]] = {}
        self._handed_over: dict[str, Groups] = {}
        self._exposing: dict[str, tuple[Groups, Groups]] = {}
        self._receiving: dict[str, Groups] = {}
        self._waiting: dict[str, tuple[Future[Any], Any]] = {}
        if slots is not None:
            self.use_host_buffer = False  # upstream's own, which never reads back

    # Leases, on D

    def fitting(self, blocks: list[Any]) -> list[Any]:
        """As many leading blocks as can be exposed now."""
        return blocks if self._slots is None else blocks[: self._slots.free]

    def expose(self, name: str, blocks: list[int]) -> list[int]:
        """The ids by which a peer reads `blocks`, which are `fitting`, under `name`."""
        if self._slots is None:
            return blocks
        slots = self._slots.take(_out(name), len(blocks))
        assert slots is not None
        self._exposing[name] = ([blocks], [slots])
        return slots

    def when_exposed(self, name: str, answer: Any) -> Any:
        """`answer`, or a future of it where `name`'s blocks are still to be copied."""
        if name not in self._exposing:
            return answer
        future: Future[Any] = Future()
        self._waiting[name] = (future, answer)
        return future

    # Reads

    def can_receive(self, tokens: int) -> bool:
        """Whether there is room for a read of `tokens` now."""
        return self._slots is None or self._needed(tokens) <= self._slots.free

    def _needed(self, tokens: int) -> int:
        return -(-tokens // self.block_size) * len(self.kv_cache_config.kv_cache_groups)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        count, load_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if not count or self.can_receive(count):
            return count, load_async
        assert self._slots is not None
        if self._needed(count) <= self._slots.capacity:
            return None, False  # asked again in the next step
        logger.warning("neuron-pd: %d tokens do not fit the staging buffer and are computed here", count)
        self.counts.add("hand_offs", "too_large")
        return 0, False

    def update_state_after_alloc(self, request: "Request", blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if self._slots is None:
            return
        params = request.kv_transfer_params or {}
        if params.get("do_remote_decode"):
            self._prompts[request.request_id] = request
        if (entry := self._reqs_need_recv.get(request.request_id)) and any(entry[1]):
            groups = [list(group) for group in entry[1]]
            taken = self._slots.take(_in(request.request_id), sum(map(len, groups)))
            # Without slots the worker reports the read as failed, and the tokens are computed.
            self._receiving[request.request_id] = [] if taken is None else _split(taken, groups)

    # Hand-offs, on P

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> Any:
        if self._slots is not None:
            self._expose_prompts(scheduler_output)
        meta = super().build_connector_meta(scheduler_output)
        # A lease's blocks hold their KV already; a prompt's do once this step has computed.
        leases = self._exposing.keys() & self._waiting.keys()
        meta.neuron_pd_leases = {name: self._exposing[name] for name in leases}
        meta.neuron_pd_prompts = [pair for name, pair in self._exposing.items() if name not in leases]
        meta.neuron_pd_receive = self._receiving
        self._exposing, self._receiving = {}, {}
        return meta

    def _expose_prompts(self, scheduler_output: "SchedulerOutput") -> None:
        """Slots for the prompts whose prefill ends in this step."""
        assert self._slots is not None
        for name, new_blocks, resumed in compat.scheduled_blocks(scheduler_output):
            if (request := self._prompts.get(name)) is None:
                continue
            groups = self._prompt_blocks.get(name)
            if groups is None or resumed:
                groups = self._prompt_blocks[name] = [[] for _ in self.kv_cache_config.kv_cache_groups]
            for group, added in zip(groups, new_blocks or (), strict=False):
                group.extend(added)
            done = request.num_computed_tokens + scheduler_output.num_scheduled_tokens[name]
            if done < request.num_prompt_tokens or _out(name) in self._slots:
                continue
            wanted = -(-request.num_prompt_tokens // self.block_size)
            groups = [group[:wanted] for group in groups]
            if (taken := self._slots.take(_out(name), sum(map(len, groups)))) is not None:
                self._handed_over[name] = _split(taken, groups)
                self._exposing[name] = (groups, self._handed_over[name])

    def request_finished(self, request: "Request", block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        name = request.request_id
        is_prompt = self._prompts.pop(name, None) is not None
        self._prompt_blocks.pop(name, None)
        slots = self._handed_over.pop(name, None)
        if is_prompt and slots is None and compat.ran_to_its_end(request):
            self.counts.add("hand_offs", "without_room")
            self._reqs_not_processed.add(name)
            return False, dict(REFUSED)
        delay, answer = super().request_finished(request, block_ids)
        if slots is not None and not delay and self._slots is not None:
            self._slots.give_back(_out(name))
        elif slots is not None and answer is not None:
            answer["remote_block_ids"] = slots
        return delay, answer

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        super().update_connector_output(connector_output)
        if self._slots is None:
            return
        received = connector_output.finished_recving or set()
        for name in received & self._waiting.keys():  # the worker says so of leases that it has exposed
            received.discard(name)
            future, answer = self._waiting.pop(name)
            if not future.cancelled():
                future.set_result(answer)
        for name in received:
            self._slots.give_back(_in(name))
        for name in connector_output.finished_sending or ():
            self._slots.give_back(_out(name))

    def staging_gauges(self) -> dict[str, float]:
        if self._slots is None:
            return {}
        return {"staging_slots": self._slots.capacity, "staging_slots_free": self._slots.free}


def _out(name: str) -> str:
    return f"out {name}"


def _in(name: str) -> str:
    return f"in {name}"


def _split(slots: list[int], groups: Groups) -> list[list[int]]:
    """`slots`, divided as `groups` are."""
    parts, start = [], 0
    for group in groups:
        parts.append(slots[start : start + len(group)])
        start += len(group)
    return parts
