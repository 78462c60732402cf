"""The worker side: upstream's reads, with the ends of a lease and of a peer that upstream does not know.

A mixin over a NIXL worker, over any memory. With a staging buffer NIXL and upstream know its slots as blocks; this side
of it copies.
"""

import time
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.logger import init_logger

from neuron_pd.buffers import BufferAdapter
from neuron_pd.buffers.staged import StagedAdapter
from neuron_pd.connector import compat
from neuron_pd.connector.memory import Memory
from neuron_pd.connector.stats import LeaseStats
from neuron_pd.connector.threads import cores_for_the_model

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker as Upstream
else:
    Upstream = object

logger = init_logger("vllm.neuron_pd")

Groups = list[list[int]]


class LeaseTransfers(Upstream):
    """Adds three things.

    A lease given back unread ends at once (on D). A read that outlasted its lease has failed (on P). After a failed
    read the peer is met anew (on both): it may have restarted under its old id, and what is known of it is stale.
    """

    def __init__(self, memory: Memory, engine_id: str) -> None:
        backends = memory.backends
        memory.adapter.before_agent()
        with cores_for_the_model(memory.adapter.shares_cores, backends), compat.agents_with(memory.parameters()):
            super().__init__(memory.vllm_config, engine_id, memory.seen())
        self.xfer_stats = LeaseStats()
        self.use_host_buffer = False  # upstream's own, which never reads back
        self.nixl_memory_type = memory.adapter.segment.value
        self._start(memory.adapter)

    def _start(self, adapter: BufferAdapter) -> None:
        self._buffer = adapter
        self._given_back: set[str] = set()
        self._receiving: dict[str, Groups] = {}
        self._landing: dict[str, tuple[Groups, Groups]] = {}
        self._exposed: set[str] = set()
        self._suspects: set[str] = set()

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        shown = dict(self._buffer.attach(self._buffer.locate(kv_caches)))
        regions = self._buffer.regions(shown)
        self._buffer.before_registration(regions, self.nixl_backends)
        logger.info("neuron-pd: %s backends=%s", self._buffer.describe(regions), ",".join(self.nixl_backends))
        super().register_kv_caches(shown)

    def set_host_xfer_buffer_ops(self, copy_operation: Any) -> None:
        """Upstream's host buffer is not used; its way of copying takes every layer's whole cache for an argument."""

    def start_load_kv(self, metadata: NixlConnectorMetadata) -> None:
        self._forget_suspects()
        self._receiving.update(getattr(metadata, "neuron_pd_receive", {}))
        # Here, because some releases end a step that computes nothing without `wait_for_save`.
        for lease_id, (blocks, slots) in getattr(metadata, "neuron_pd_leases", {}).items():
            self._staged.save(_flat(blocks), _flat(slots))
            self._exposed.add(lease_id)
        super().start_load_kv(metadata)
        for lease_id in getattr(metadata, "neuron_pd_given_back", ()):
            if lease_id in self._reqs_to_process:
                self._reqs_to_process.discard(lease_id)
                self._reqs_to_send.pop(lease_id, None)
                self._given_back.add(lease_id)

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        if (slots := self._receiving.get(req_id)) is not None:
            if not slots:
                logger.warning("neuron-pd: no room in the staging buffer for %s, which is recomputed", req_id)
                del self._receiving[req_id]
                compat.fail_read(self, req_id)
                self._suspects.discard(meta.remote.engine_id)  # the peer has no part in it
                return
            ratio = self._physical_blocks_per_logical_kv_block
            meta.local_physical_block_ids = self._logical_to_kernel_block_ids(slots, ratio)
            self._landing[req_id] = ([list(group) for group in meta.local_block_ids], slots)
        super()._read_blocks_for_req(req_id, meta)

    # Staging: out of the device once a step has computed, into it once a read has arrived

    def expose_prompts(self, metadata: NixlConnectorMetadata) -> None:
        """The step has computed: copy the prompts that it ended to where peers read."""
        for blocks, slots in getattr(metadata, "neuron_pd_prompts", ()):
            self._staged.save(_flat(blocks), _flat(slots))

    def get_transfer_results(self) -> Any:
        results = super().get_transfer_results()
        self._land(results.finished_recving, results.failed_recving)
        results.finished_recving |= self._take_exposed()
        return results

    def get_finished(self) -> tuple[set[str], set[str]]:
        # What 0.29 calls; later releases call it for nobody, and it is get_transfer_results in two parts.
        sending, receiving = super().get_finished()
        self._land(receiving, set())
        return sending, receiving | self._take_exposed()

    def _land(self, done: set[str], failed: set[str]) -> None:
        for request_id in done & self._landing.keys():
            blocks, slots = self._landing.pop(request_id)
            del self._receiving[request_id]
            if request_id not in failed:
                self._staged.load(_flat(blocks), _flat(slots))

    def _take_exposed(self) -> set[str]:
        exposed, self._exposed = self._exposed, set()
        return exposed

    @property
    def _staged(self) -> StagedAdapter:
        assert isinstance(self._buffer, StagedAdapter)
        return self._buffer

    # Leases

    def _get_new_notifs(self) -> set[str]:
        notified: set[str] = super()._get_new_notifs() | self._given_back
        self._given_back = set()
        return notified

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> Any:
        popped = super()._pop_done_transfers(transfers)
        done, failed = popped if isinstance(popped, tuple) else (popped, None)
        # D may have given the blocks to someone else while the last bytes were on their way.
        late = {request_id for request_id in done if self._outlasted_lease(request_id)}
        for request_id in late:
            logger.warning("neuron-pd: the read for %s outlasted its lease and is recomputed", request_id)
            self.xfer_stats.record_kv_expired_req()
        if failed is not None:
            return done, failed | late
        for request_id in late:  # 0.29 is told of failures one by one
            self._handle_failed_transfer(request_id, None)
        return done

    def _handle_failed_transfer(self, req_id: str, *args: Any, **kwargs: Any) -> Any:
        if (meta := self._recving_metadata.get(req_id)) is not None and meta.remote is not None:
            self._suspects.add(meta.remote.engine_id)
        return super()._handle_failed_transfer(req_id, *args, **kwargs)

    def _forget_suspects(self) -> None:
        """Drop what is known of peers that a read failed from, once no other read from them is under way."""
        metas = (self._recving_metadata.get(request_id) for request_id in self._recving_transfers)
        busy = {meta.remote.engine_id for meta in metas if meta is not None and meta.remote is not None}
        for engine_id in self._suspects - busy:
            self._suspects.discard(engine_id)
            if engine_id in self._remote_agents:
                self._cleanup_remote_engine(engine_id)

    def _outlasted_lease(self, request_id: str) -> bool:
        meta = self._recving_metadata.get(request_id)
        if meta is None or meta.remote is None or meta.remote.blocks_expiry_time is None:
            return False
        # The deadline is on D's clock; the handshake measured the offset.
        offset = self._engine_clock_offset.get(meta.remote.engine_id, 0.0)
        return time.perf_counter() >= meta.remote.blocks_expiry_time - offset


def _flat(groups: Groups) -> list[int]:
    return [number for group in groups for number in group]
