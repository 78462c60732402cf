"""The scheduler side, on the engine's main thread: where vLLM's hooks meet what D retains and what P reuses.

A mixin over upstream's NIXL scheduler, which goes on doing block lists, handshakes, heartbeats and the hand-off P→D.

On D (retain.py)                                On P (reuse.py)
  a turn ends      request_finished               a turn arrives    on_new_request
  acquire          control                        it is scheduled   get_num_new_matched_tokens, update_state_after_alloc
  P has read       update_connector_output        it has read       update_connector_output
                                                  it is done        request_finished
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.platforms import current_platform

from neuron_pd import __version__
from neuron_pd.connector import compat
from neuron_pd.connector.retain import Retention
from neuron_pd.connector.reuse import Reuse, withdraw
from neuron_pd.connector.side_channel import LeaseClient, answering
from neuron_pd.connector.stats import Counts, LeaseStats
from neuron_pd.core.control import EngineInfo
from neuron_pd.core.decision import AUTO
from neuron_pd.core.fingerprint import Seed
from neuron_pd.core.settings import Settings
from neuron_pd.core.transfer import BLOCK_SIZE, TURN, RemoteBlocks
from neuron_pd.errors import TransferParamsError

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from neuron_pd.connector.staging import StagedTransfers as Upstream
else:
    Upstream = object

logger = init_logger("vllm.neuron_pd")


class LeaseOnRead(Upstream):
    """Lease-on-read: nothing is pinned between turns, and P reads only what it has verified."""

    def configure(self, settings: Settings, token: str | None, slots: int | None = None) -> None:
        """Called once, after upstream's constructor. `slots` of a staging buffer, where there is one."""
        self.configure_staging(slots)
        cache = self.vllm_config.cache_config
        self._settings, self._token = settings, token or ""
        self._prefix_caching = bool(cache.enable_prefix_caching)
        self._handed_off: set[str] = set()
        self._given_back: list[str] = []
        verifiable = compat.has_one_full_attention_group(self.kv_cache_config)
        enabled = bool(self.is_bidirectional_kv_xfer_enabled)
        self.counts = Counts()
        self.retention = Retention(
            settings,
            self.counts,
            self._seed,
            serves=enabled and self._prefix_caching and verifiable,
            address=self._address(),
            block_size=self.block_size,
            pool_blocks=self.kv_cache_config.num_blocks,
            exposure=self,
        )
        self.reuse = Reuse(
            settings,
            self.counts,
            self._seed,
            LeaseClient(),
            engine_id=self.engine_id,
            enabled=enabled,
            verifiable=verifiable,
            groups=len(self.kv_cache_config.kv_cache_groups),
            block_size=self.block_size,
            bytes_per_token=compat.bytes_per_token(self.kv_cache_config),
            can_receive=self.can_receive,
        )

    def _address(self) -> dict[str, Any]:
        parallel = self.vllm_config.parallel_config
        return {
            "remote_engine_id": self.engine_id,
            "remote_host": self.side_channel_host,
            "remote_port": self.side_channel_port,
            "tp_size": compat.transfer_tp_size(self),
            "dcp_size": parallel.decode_context_parallel_size,
            "pp_size": parallel.pipeline_parallel_size,
            "transfer_mode": "pull",
        }

    def _seed(self, request: "Request") -> Seed:
        model = self.vllm_config.model_config
        adapter = request.lora_request.lora_name if request.lora_request else ""
        return Seed(model.model, model.revision or "", adapter, request.cache_salt or "", self._token)

    # A request comes, is scheduled, and goes

    def on_new_request(self, request: "Request") -> None:
        params = request.kv_transfer_params
        if params and params.get("do_remote_decode"):
            self.reuse.turn_arrived(request, params)
        elif params and params.get("do_remote_prefill"):
            self._check_hand_off(params)
        super().on_new_request(request)

    def _check_hand_off(self, params: dict[str, Any]) -> None:
        """A hand-off that does not hold together is computed here: the worker would assert, and end the engine."""
        groups = params.get("remote_block_ids")
        if isinstance(groups, list | tuple) and not any(groups):
            return
        try:
            RemoteBlocks.parse(params, len(self.kv_cache_config.kv_cache_groups))
            if (theirs := params.get(BLOCK_SIZE, self.block_size)) != self.block_size:
                # Out of larger blocks upstream reads nothing; out of smaller ones it lines up the ends of the lists,
                # and P's last blocks may not fill one of ours.
                raise TransferParamsError("block_size", f"P's blocks have {theirs} tokens, ours {self.block_size}")
        except TransferParamsError as error:
            logger.warning("neuron-pd: a hand-off is refused, the prompt is computed here: %s", error)
            self.counts.add("hand_offs", "refused")
            params["do_remote_prefill"] = False
            withdraw(params)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        if request.request_id not in self.reuse.legs:
            answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
            return answer
        tokens = self.reuse.tokens_to_read(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens > 0:
            self.reuse.read_queued(request.request_id)

    def request_finished(self, request: "Request", block_ids: Sequence[Any]) -> tuple[bool, dict[str, Any] | None]:
        params = request.kv_transfer_params
        if not params:
            return False, None
        if params.get("do_remote_decode"):
            return self._finish_prefill_leg(request, block_ids)
        if params.get("do_remote_prefill"):
            # Never scheduled: upstream tells P to free its blocks.
            result: tuple[bool, dict[str, Any] | None] = super().request_finished(request, block_ids)
            return result
        self._stop_heartbeat(request.request_id)
        blocks = block_ids[0] if block_ids else ()
        kept = self.retention.turn_ended(request, blocks, compat.ran_to_its_end(request))
        if kept is None:
            self._reqs_not_processed.add(request.request_id)
            return False, None
        self._reqs_in_batch.add(request.request_id)
        return True, kept

    def _finish_prefill_leg(self, request: "Request", block_ids: Sequence[Any]) -> tuple[bool, dict[str, Any] | None]:
        delay, answer = super().request_finished(request, block_ids)
        if delay:
            self._handed_off.add(request.request_id)
        report = self.reuse.turn_done(request, completed=answer is not None)
        if answer is not None and report is not None:
            answer[TURN] = report.as_json()
            answer[BLOCK_SIZE] = self.block_size
        return delay, answer

    # A step of the engine

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> Any:
        self.reuse.prolong_claims()
        closing = self.retention.closing()
        # The worker knows a lease as a request that is being processed: it hears of the read, and keeps no time.
        self._reqs_in_batch.update(self.retention.take_opened())
        meta = super().build_connector_meta(scheduler_output)
        meta.neuron_pd_given_back, self._given_back = [*self._given_back, *closing], []
        return meta

    def has_pending_push_work(self) -> bool:
        # An open lease keeps an idle engine stepping: the worker must learn of it, and notice P's notification.
        return len(self.retention.leases) > 0 or bool(super().has_pending_push_work())

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        super().update_connector_output(connector_output)
        failed = compat.failed_reads(connector_output)
        for request_id in failed | (connector_output.finished_recving or set()):
            self.reuse.read_ended(request_id, failed=request_id in failed)
        finished = connector_output.finished_sending or set()
        self._handed_off.difference_update(finished)
        for name in [name for name in finished if name in self.retention.leases]:
            if not self.retention.ended(name):
                # vLLM's scheduler knows its own requests only, and asserts that.
                finished.discard(name)

    def shutdown(self) -> None:
        self.reuse.client.close()
        super().shutdown()

    def _nixl_handshake_listener(self, *args: Any) -> None:
        # A static method upstream, run in a thread of its own.
        with compat.side_channel(lambda opened: answering(opened, self.retention.answer)):
            super()._nixl_handshake_listener(*args)

    # Seen from outside

    def release(self, name: str) -> int:
        """Give back unread what nobody will read: a lease, those of a handle, or P's blocks of a request: how many."""
        given_back = self.retention.release(name)
        if name in self._handed_off:
            self._handed_off.remove(name)
            self._given_back.append(name)
            given_back += 1
        return given_back

    def info(self, pool: Any) -> dict[str, Any]:
        transfer, settings = self.vllm_config.kv_transfer_config, self._settings
        return EngineInfo(
            version=__version__,
            vllm=compat.VLLM_VERSION,
            nixl=compat.distribution_version("nixl", "nixl-cu12", "nixl-cu13"),
            torch=compat.distribution_version("torch"),
            model=self.vllm_config.model_config.model,
            role={"kv_producer": "prefill", "kv_consumer": "decode"}.get(transfer.kv_role, "both"),
            engine_id=self.engine_id,
            accelerator=current_platform.device_type,
            block_size=self.block_size,
            kv_blocks=pool.num_gpu_blocks - 1,
            retention=settings.retention,
            bidirectional=bool(self.is_bidirectional_kv_xfer_enabled),
            prefix_caching=self._prefix_caching,
            kv_recompute_threshold=AUTO if settings.auto else settings.threshold,
            read_lease_seconds=settings.read_lease_seconds,
            decoder_kv_blocks_ttl=settings.decoder_kv_blocks_ttl,
            kv_layout=compat.kv_cache_layout(self.vllm_config),
            side_channel_host=str(self.side_channel_host),
            side_channel_port=int(self.side_channel_port),
        ).as_json()

    def stats(self, pool: Any) -> dict[str, float]:
        """Gauges and counters since the start. `kv_blocks_used` is everything in use, by requests and by leases."""
        blocks = pool.num_gpu_blocks - 1
        used = blocks - pool.get_num_free_blocks()
        gauges = {**self.retention.gauges(), **self.staging_gauges()}
        return {**gauges, "kv_blocks_used": used, "kv_blocks": blocks, **self.counts.totals}

    def take_stats(self) -> LeaseStats | None:
        """What has happened since the last call, for vLLM to carry to `/metrics`."""
        return self.counts.take(self.retention.gauges())


def control(scheduler: Any, verb: str, argument: str) -> Any:
    """One control request on the engine's thread; `verb` is the last part of its path."""
    connector = scheduler.connector.connector_scheduler
    pool = compat.block_pool(scheduler)
    if verb == "acquire":
        return connector.retention.acquire(argument, pool)
    if verb == "renew":
        return connector.retention.renew(argument)
    if verb == "release":
        return connector.release(argument)
    return connector.info(pool) if verb == "info" else connector.stats(pool)
