"""The scheduler side: records and leases on D, verification and the decision on P. Runs on the engine's main thread.

A mixin over upstream's NIXL scheduler, which goes on doing block lists, handshakes, heartbeats and the hand-off P→D.

On D                                            On P
  a turn ends      request_finished → record       a turn arrives    on_new_request → verify, cut to the verified prefix
  acquire          look up, pin, open a lease      it is scheduled   get_num_new_matched_tokens → read back or recompute
  P has read       update_connector_output → end   it is done        request_finished → report what was done
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.platforms import current_platform

from neuron_pd import __version__
from neuron_pd.connector import compat
from neuron_pd.core.control import AcquireMiss, EngineInfo
from neuron_pd.core.decision import Path, Reason, choose
from neuron_pd.core.fingerprint import Fingerprint, Seed
from neuron_pd.core.lease import LeaseEnd, Leases
from neuron_pd.core.ledger import Ledger, Record
from neuron_pd.core.transfer import FINGERPRINT, HANDLE, TURN, RemoteBlocks, TurnReport, first_leg
from neuron_pd.errors import TransferParamsError

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler as Upstream
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request
else:
    Upstream = object

logger = init_logger("vllm.neuron_pd")

LEDGER_BYTES = 64 * 1024 * 1024
READ_LEASE_SECONDS = 30.0
USED_LEASES_KEPT = 10_000  # far more than one engine can be offered within a lease's time


class LeaseOnRead(Upstream):
    """Lease-on-read: nothing is pinned between turns, and P reads only what it has verified."""

    def configure(self, token: str | None) -> None:
        """Read the connector's own settings; called once, after upstream's constructor."""
        extra = self.vllm_config.kv_transfer_config.get_from_extra_config
        self._token = token or ""
        self._read_lease_seconds = float(extra("read_lease_seconds", READ_LEASE_SECONDS))
        self._ledger = Ledger(int(extra("ledger_bytes", LEDGER_BYTES)))
        self._prefix_caching = bool(self.vllm_config.cache_config.enable_prefix_caching)
        self._one_group = compat.has_one_full_attention_group(self.kv_cache_config)
        self._leases: Leases[Any] = Leases(self._pin, self._unpin)
        self._pool: Any = None
        self._given_back: list[str] = []
        self._handed_off: set[str] = set()
        self._turns: dict[str, TurnReport] = {}
        self._used_leases: OrderedDict[str, None] = OrderedDict()
        self._counts: Counter[str] = Counter()

    @property
    def _serves_reads(self) -> bool:
        return bool(self.is_bidirectional_kv_xfer_enabled) and self._prefix_caching and self._one_group

    # On D: a turn ends

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
        self._reqs_not_processed.add(request.request_id)
        if (handle := params.get(HANDLE)) is not None:
            self._record(handle, request)
        return False, None

    def _record(self, handle: Any, request: "Request") -> None:
        if not self._serves_reads:
            return
        if not isinstance(handle, str) or not compat.is_text_only(request):
            self._counts["records_refused"] += 1
            return
        blocks = min(len(request.block_hashes), compat.computed_tokens(request) // self.block_size)
        if blocks == 0:
            return
        hashes = request.block_hashes[:blocks]
        fingerprint = Fingerprint.of(request.all_token_ids, self.block_size, self._seed(request), limit=blocks)
        self._ledger.put(handle, Record(b"".join(hashes), len(hashes[0]), fingerprint))
        self._counts["records"] += 1

    # On D: acquire, release, the end of a lease

    def acquire(self, handle: str, pool: Any) -> dict[str, Any]:
        """Lease what is still cached of the record `handle`: transfer parameters for P, or {"reason": AcquireMiss}."""
        miss, lease = self._lease(handle, pool)
        self._counts["acquires_" + (miss or "leased")] += 1
        return {"reason": miss} if miss else {"kv_transfer_params": lease}

    def _lease(self, handle: str, pool: Any) -> tuple[AcquireMiss | None, dict[str, Any]]:
        self._pool = pool
        # Hashes finer than a block (vLLM's partial hits) would name other blocks than the record means.
        if not self._serves_reads or pool.hash_block_size != self.block_size:
            return AcquireMiss.DISABLED, {}
        if (record := self._ledger.get(handle)) is None:
            return AcquireMiss.UNKNOWN_HANDLE, {}
        blocks = compat.cached_prefix(pool, tuple(record.block_hashes()))
        if not blocks:
            return AcquireMiss.EVICTED, {}
        lease = self._leases.open(handle, blocks, time.perf_counter() + self._read_lease_seconds)
        # The worker learns of the lease as of a finished request that waits to be read.
        self._reqs_in_batch.add(lease.id)
        self._reqs_need_send[lease.id] = lease.deadline
        return None, self._lease_params(lease.id, lease.deadline, blocks, record.fingerprint)

    def _lease_params(self, lease_id: str, deadline: float, blocks: list[Any], chain: Fingerprint) -> dict[str, Any]:
        parallel = self.vllm_config.parallel_config
        return first_leg(
            {
                "remote_block_ids": [[block.block_id for block in blocks]],
                "remote_engine_id": self.engine_id,
                "remote_request_id": lease_id,
                "remote_host": self.side_channel_host,
                "remote_port": self.side_channel_port,
                "remote_num_tokens": len(blocks) * self.block_size,
                "remote_blocks_expiry_time": deadline,
                "tp_size": compat.transfer_tp_size(self),
                "dcp_size": parallel.decode_context_parallel_size,
                "pp_size": parallel.pipeline_parallel_size,
                "transfer_mode": "pull",
                FINGERPRINT: chain.first(len(blocks)).as_json(),
            }
        )

    def release(self, name: str) -> int:
        """Give back unread what nobody will read: how much that was.

        `name` is a lease; or a handle: its record is forgotten and its leases are given back; or, on P, a request whose
        blocks wait for a decode engine that will not come.
        """
        self._ledger.drop(name)
        given_back = [lease for lease in (*self._leases.of_handle(name), name) if self._leases.give_back(lease)]
        if name in self._handed_off:
            self._handed_off.remove(name)
            given_back.append(name)
        self._given_back += given_back
        return len(given_back)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> Any:
        meta = super().build_connector_meta(scheduler_output)
        meta.neuron_pd_given_back, self._given_back = self._given_back, []
        return meta

    def has_pending_push_work(self) -> bool:
        # An open lease keeps an idle engine stepping: the worker must learn of it, and notice P's notification.
        return len(self._leases) > 0 or bool(super().has_pending_push_work())

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        super().update_connector_output(connector_output)
        for request_id in compat.failed_reads(connector_output):
            self._load_failed(request_id)
        finished = connector_output.finished_sending or set()
        self._handed_off -= finished
        for lease_id in [name for name in finished if name in self._leases]:
            # vLLM's scheduler knows its own requests only, and asserts that.
            finished.discard(lease_id)
            if self._leases.end(lease_id, time.perf_counter()) is LeaseEnd.EXPIRED:
                logger.warning("neuron-pd: lease %s was not read within %.0f s", lease_id, self._read_lease_seconds)

    def _pin(self, blocks: Sequence[Any]) -> None:
        self._pool.touch(blocks)

    def _unpin(self, blocks: Sequence[Any]) -> None:
        # In reverse, as vLLM frees a request: the tail of a sequence is evicted first, and what remains is a prefix.
        self._pool.free_blocks(reversed(blocks))

    # On P: a turn arrives, is scheduled, is done

    def on_new_request(self, request: "Request") -> None:
        params = request.kv_transfer_params
        if params and params.get("do_remote_decode"):
            self._turns[request.request_id] = self._verify(request, params)
        elif params and params.get("do_remote_prefill"):
            self._check_hand_off(params)
        super().on_new_request(request)

    def _verify(self, request: "Request", params: dict[str, Any]) -> TurnReport:
        """Cut the offered lease to what this prompt shares with it, in whole blocks, and say how much that is."""
        try:
            remote = RemoteBlocks.parse(params, len(self.kv_cache_config.kv_cache_groups))
        except TransferParamsError as error:
            logger.warning("neuron-pd: the lease of %s is refused: %s", request.request_id, error)
            _withdraw(params)
            return _recompute(request, Reason.MALFORMED)
        if remote is None:
            return _recompute(request, Reason.NO_LEASE)
        if refusal := self._refusal(request, remote):
            _withdraw(params)
            return _recompute(request, refusal, remote.num_tokens)
        self._use(remote.request_id)
        assert remote.fingerprint is not None
        matching = min(
            remote.fingerprint.matches(request.prompt_token_ids, self._seed(request)),
            len(remote.block_ids[0]) * remote.fingerprint.block_size,
            remote.num_tokens,
        )
        verified = matching - matching % self.block_size
        params["remote_block_ids"] = [list(remote.block_ids[0][: verified // remote.fingerprint.block_size])]
        # With 0 tokens nothing is read, and upstream's worker tells D that it may end the lease.
        params["remote_num_tokens"] = verified
        return replace(_recompute(request, Reason.MISMATCH, remote.num_tokens), verified=verified)

    def _refusal(self, request: "Request", remote: RemoteBlocks) -> Reason | None:
        if not self.is_bidirectional_kv_xfer_enabled:
            return Reason.BIDIRECTIONAL_OFF
        if remote.engine_id == self.engine_id:
            return Reason.SELF_READ
        if remote.request_id in self._used_leases:
            return Reason.LEASE_USED
        if not self._one_group or not compat.is_text_only(request):
            return Reason.UNSUPPORTED
        return Reason.UNVERIFIED if remote.fingerprint is None else None

    def _use(self, lease_id: str) -> None:
        """A lease is read once: D ends it when it hears of the read, and may give its blocks to anyone."""
        self._used_leases[lease_id] = None
        if len(self._used_leases) > USED_LEASES_KEPT:
            self._used_leases.popitem(last=False)

    def _check_hand_off(self, params: dict[str, Any]) -> None:
        """A hand-off that does not hold together is computed here: the worker would assert, and end the engine."""
        groups = params.get("remote_block_ids")
        if isinstance(groups, list | tuple) and not any(groups):
            return
        try:
            RemoteBlocks.parse(params, len(self.kv_cache_config.kv_cache_groups))
        except TransferParamsError as error:
            logger.warning("neuron-pd: a hand-off is refused, the prompt is computed here: %s", error)
            self._counts["hand_offs_refused"] += 1
            params["do_remote_prefill"] = False
            _withdraw(params)

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int, bool]:
        turn = self._turns.get(request.request_id)
        if turn is None:
            answer: tuple[int, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
            return answer
        if request.kv_transfer_params.get("_remote_blocks_processed"):
            # The one read of this request failed, or it was preempted after it: upstream would wait for ever.
            self._load_failed(request.request_id)
            return 0, False
        if turn.verified or turn.reason == Reason.MISMATCH:
            path, reason = choose(turn.verified, num_computed_tokens, self.kv_recompute_threshold)
        else:
            path, reason = Path(turn.path), Reason(turn.reason)
        fetch = turn.verified - num_computed_tokens if path is Path.READ_BACK else 0
        self._turns[request.request_id] = replace(
            turn, path=path.value, reason=reason.value, reused=fetch, local=num_computed_tokens
        )
        return fetch, fetch > 0

    def _load_failed(self, request_id: str) -> None:
        if turn := self._turns.get(request_id):
            self._turns[request_id] = replace(
                turn, path=Path.RECOMPUTE.value, reason=Reason.LOAD_FAILED.value, reused=0
            )

    def _finish_prefill_leg(self, request: "Request", block_ids: Sequence[Any]) -> tuple[bool, dict[str, Any] | None]:
        delay, answer = super().request_finished(request, block_ids)
        if delay:
            self._handed_off.add(request.request_id)
        turn = self._turns.pop(request.request_id, None)
        if turn is not None:
            self._counts[f"turns_{turn.path}_{turn.reason}"] += 1
            self._counts["offered_tokens"] += turn.offered
            self._counts["verified_tokens"] += turn.verified
            self._counts["reused_tokens"] += turn.reused
            if turn.offered:
                logger.info("neuron-pd: turn request=%s %s", request.request_id, turn)
        if answer is not None and turn is not None:
            answer[TURN] = turn.as_json()
        return delay, answer

    # Seen from outside

    def _seed(self, request: "Request") -> Seed:
        model = self.vllm_config.model_config
        adapter = request.lora_request.lora_name if request.lora_request else ""
        return Seed(model.model, model.revision or "", adapter, request.cache_salt or "", self._token)

    def info(self, pool: Any) -> dict[str, Any]:
        transfer = self.vllm_config.kv_transfer_config
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
            retention="lease",
            bidirectional=bool(self.is_bidirectional_kv_xfer_enabled),
            prefix_caching=self._prefix_caching,
            kv_recompute_threshold=self.kv_recompute_threshold,
            read_lease_seconds=self._read_lease_seconds,
        ).as_json()

    def stats(self, pool: Any) -> dict[str, float]:
        """Gauges and counters since the start. `kv_blocks_used` is everything in use, by requests and by leases."""
        gauges = {
            "open_leases": len(self._leases),
            "pinned_blocks": self._leases.pinned_blocks,
            "ledger_records": len(self._ledger),
            "ledger_bytes": self._ledger.nbytes,
            "kv_blocks_used": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "kv_blocks": pool.num_gpu_blocks - 1,
        }
        ends = {f"leases_{how}": count for how, count in self._leases.ended.items()}
        return {**gauges, **ends, **self._counts}


def _recompute(request: "Request", reason: Reason, offered: int = 0) -> TurnReport:
    path = Path.RECOMPUTE.value
    return TurnReport(path, reason.value, request.num_prompt_tokens, offered, verified=0, reused=0, local=0)


def _withdraw(params: dict[str, Any]) -> None:
    """Take the remote blocks out of a request's parameters: nothing is read and nobody is told."""
    for name in [name for name in params if name.startswith("remote_")]:
        del params[name]


def control(scheduler: Any, verb: str, argument: str) -> Any:
    """One control request on the engine's thread; `verb` is the last part of its path."""
    connector = scheduler.connector.connector_scheduler
    pool = compat.block_pool(scheduler)
    if verb == "acquire":
        return connector.acquire(argument, pool)
    if verb == "release":
        return connector.release(argument)
    return connector.info(pool) if verb == "info" else connector.stats(pool)
