"""The worker side: upstream's reads, with the ends of a lease and of a peer that upstream does not know."""

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.logger import init_logger
from vllm.platforms import current_platform

from neuron_pd.connector.stats import LeaseStats
from neuron_pd.connector.threads import cores_for_the_model

logger = init_logger("vllm.neuron_pd")


class LeaseWorker(NixlPullConnectorWorker):
    """Adds three things.

    A lease given back unread ends at once (on D). A read that outlasted its lease has failed (on P). After a failed
    read the peer is met anew (on both): it may have restarted under its old id, and what is known of it is stale.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with cores_for_the_model(current_platform.is_cpu()):
            super().__init__(*args, **kwargs)
        self.xfer_stats = LeaseStats()
        self._given_back: set[str] = set()
        self._suspects: set[str] = set()

    def start_load_kv(self, metadata: NixlConnectorMetadata) -> None:
        self._forget_suspects()
        super().start_load_kv(metadata)
        for lease_id in getattr(metadata, "neuron_pd_given_back", ()):
            if lease_id in self._reqs_to_process:
                self._reqs_to_process.discard(lease_id)
                self._reqs_to_send.pop(lease_id, None)
                self._given_back.add(lease_id)

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
