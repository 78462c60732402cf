"""What P does with a lease that a router offers: verify it, claim it, read it back or leave it, and say what was done.

a turn arrives    verify against the prompt, claim at D        ─► nothing in common: give the lease back
it is scheduled   choose: read back or recompute               ─► while D's answer is awaited: not yet
it has read       measured, for the next choice
it is done        report
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from vllm.logger import init_logger
from vllm.v1.request import Request

from neuron_pd.connector import compat
from neuron_pd.connector.side_channel import Granted, LeaseClient, Peer
from neuron_pd.connector.stats import Counts
from neuron_pd.core.cost import PrefillMeter, TransferMeter
from neuron_pd.core.decision import Path, Reason, choose
from neuron_pd.core.fingerprint import Seed
from neuron_pd.core.lease import Refused
from neuron_pd.core.settings import Settings
from neuron_pd.core.transfer import Params, RemoteBlocks, TurnReport
from neuron_pd.errors import TransferParamsError

logger = init_logger("vllm.neuron_pd")

# Upstream's worker declines a read that begins within 5 s of the deadline; a claim is prolonged well before.
PROLONG_SECONDS = 12.0
REMEASURE_SECONDS = 60.0  # a transfer cost older than this is measured again before it decides against reading


@dataclass(slots=True)
class Leg:
    """One prefill leg, from its arrival to its report. Times in seconds on this engine's clock; 0: not yet."""

    report: TurnReport
    engine_id: str = ""
    lease: str = ""
    peer: Peer | None = None
    claim: "Future[Granted | Refused] | None" = None
    began: float = 0.0
    read_began: float = 0.0
    read_ended: float = 0.0
    expected: float = 0.0

    def recompute(self, reason: Reason) -> None:
        self.report = replace(self.report, path=Path.RECOMPUTE.value, reason=reason.value, reused=0)

    def read_failed(self) -> None:
        """The one read of this request failed, or it was preempted after it: it starts again, computing."""
        self.recompute(Reason.LOAD_FAILED)
        self.began, self.read_ended, self.expected = time.perf_counter(), 0.0, 0.0


class Reuse:
    """P's side of one engine. `verifiable`: its cache has the one layout whose blocks can be compared with D's."""

    def __init__(
        self,
        settings: Settings,
        counts: Counts,
        seed: Callable[[Request], Seed],
        client: LeaseClient,
        *,
        engine_id: str,
        enabled: bool,
        verifiable: bool,
        groups: int,
        block_size: int,
        bytes_per_token: float,
        can_receive: Callable[[int], bool],
    ) -> None:
        self.settings, self.counts, self.seed, self.client = settings, counts, seed, client
        self.engine_id, self.enabled, self.verifiable = engine_id, enabled, verifiable
        self.groups, self.block_size, self.bytes_per_token = groups, block_size, bytes_per_token
        self.can_receive = can_receive
        self.legs: dict[str, Leg] = {}
        self.prefill = PrefillMeter()
        self.peers: dict[str, TransferMeter] = {}
        self._last_read: dict[str, float] = {}
        self._said_unverified = False

    # A turn arrives

    def turn_arrived(self, request: Request, params: Params) -> None:
        leg = self.legs[request.request_id] = self._verify(request, params)
        if leg.report.verified and leg.peer:
            leg.claim = self.client.claim(leg.peer, leg.lease, self._reader(request.request_id))
        elif not leg.report.verified:
            self._leave(request, leg)

    def _verify(self, request: Request, params: Params) -> Leg:
        """Cut the offered lease to what this prompt shares with it, in whole blocks, and say how much that is."""
        try:
            remote = RemoteBlocks.parse(params, self.groups)
        except TransferParamsError as error:
            logger.warning("neuron-pd: the lease of %s is refused: %s", request.request_id, error)
            return Leg(_recompute(request, Reason.MALFORMED))
        if remote is None:
            return Leg(_recompute(request, Reason.NO_LEASE))
        leg = Leg(_recompute(request, Reason.MISMATCH, remote.num_tokens), remote.engine_id)
        if remote.fingerprint is not None:
            leg.lease, leg.peer = remote.request_id, Peer(params["remote_host"], params["remote_port"])
        if refusal := self._refusal(request, remote):
            leg.recompute(refusal)
            return leg
        verified, block_size = self._common(request, remote)
        params["remote_block_ids"] = [list(remote.block_ids[0][: -(-verified // block_size)])]
        params["remote_num_tokens"] = verified
        leg.report = replace(leg.report, verified=verified)
        return leg

    def _refusal(self, request: Request, remote: RemoteBlocks) -> Reason | None:
        if not self.enabled:
            return Reason.BIDIRECTIONAL_OFF
        if remote.engine_id == self.engine_id:
            return Reason.SELF_READ
        if not self.verifiable or not compat.is_verifiable(request):
            return Reason.UNSUPPORTED
        if remote.fingerprint is not None and self.block_size % remote.fingerprint.block_size:
            return Reason.UNSUPPORTED  # upstream's worker reads into blocks that are made of whole remote ones
        if remote.fingerprint is not None or self.settings.allow_unverified:
            return None
        if not self._said_unverified:
            self._said_unverified = True
            logger.warning(
                "neuron-pd: leases without a fingerprint are offered and refused (set unverified to allow them)"
            )
        return Reason.UNVERIFIED

    def _common(self, request: Request, remote: RemoteBlocks) -> tuple[int, int]:
        """Tokens in whole blocks of this engine that the lease may be read for, and the lease's block size."""
        offered = min(remote.num_tokens, request.num_prompt_tokens)
        if remote.fingerprint is None:
            block_size, matching = self.block_size, min(offered, len(remote.block_ids[0]) * self.block_size)
        else:
            block_size = remote.fingerprint.block_size
            found = remote.fingerprint.matches(request.prompt_token_ids, self.seed(request), compat.items(request))
            matching = min(found, len(remote.block_ids[0]) * block_size, remote.num_tokens)
        return matching - matching % self.block_size, block_size

    # It is scheduled

    def tokens_to_read(self, request: Request, local: int) -> int | None:
        """How many tokens after the first `local` are to be read from D; None while that is not known yet."""
        leg = self.legs[request.request_id]
        params = request.kv_transfer_params
        if params.get("_remote_blocks_processed"):
            if leg.report.path == Path.READ_BACK:
                leg.read_failed()  # upstream would wait for ever
            return 0
        leg.report = replace(leg.report, local=local)
        if params.get("remote_block_ids") and leg.report.verified:
            path, reason, expected = self._choose(leg, local)
            if path is Path.READ_BACK and not self.can_receive(leg.report.verified - local):
                reason = Reason.STAGING_FULL
            elif path is Path.READ_BACK and leg.claim is not None:
                if not leg.claim.done():
                    return None
                reason = self._claimed(leg, params)
            if reason is not Reason.VERIFIED:
                leg.recompute(reason)
                self._leave(request, leg)
            else:
                leg.report = replace(
                    leg.report, path=path.value, reason=reason.value, reused=leg.report.verified - local
                )
            leg.expected = expected[Path(leg.report.path)] if expected else 0.0
        leg.began = leg.began or time.perf_counter()
        return leg.report.reused

    def _choose(self, leg: Leg, local: int) -> tuple[Path, Reason, dict[Path, float]]:
        path, reason = choose(leg.report.verified, local, 0 if self.settings.auto else self.settings.threshold)
        costs = self._expected(leg, local)
        if not self.settings.auto or path is not Path.READ_BACK:
            return path, reason, costs
        if not costs:
            return *choose(leg.report.verified, local, self.settings.threshold), costs
        stale = time.perf_counter() - self._last_read.get(leg.engine_id, 0.0) > REMEASURE_SECONDS
        if costs[Path.READ_BACK] > costs[Path.RECOMPUTE] and not stale:
            return Path.RECOMPUTE, Reason.COST, costs
        return path, reason, costs

    def _expected(self, leg: Leg, local: int) -> dict[Path, float]:
        """Seconds until this leg is done, by path; nothing before enough was measured."""
        meter = self.peers.get(leg.engine_id)
        compute, transfer = self.prefill.cost, meter.cost if meter else None
        if compute is None or transfer is None:
            return {}
        prompt, verified = leg.report.prompt, leg.report.verified
        read = transfer.seconds((verified - local) * self.bytes_per_token)
        # vLLM computes at least the last token, also of a prompt that is there whole.
        return {
            Path.READ_BACK: read + compute.seconds(max(prompt - verified, 1), verified),
            Path.RECOMPUTE: compute.seconds(prompt - local, local),
        }

    def _claimed(self, leg: Leg, params: Params) -> Reason:
        assert leg.claim is not None
        answer = leg.claim.result()
        if isinstance(answer, Refused):
            logger.info(
                "neuron-pd: declining an expired or used read-back from %s: lease %s is %s",
                leg.engine_id,
                leg.lease,
                answer,
            )
            return Reason.LEASE_TAKEN if answer is Refused.TAKEN else Reason.LEASE_GONE
        params["remote_blocks_expiry_time"] = answer.deadline
        return Reason.VERIFIED

    def prolong_claims(self) -> None:
        """Claim again what waits in the queue and is about to run out."""
        for request_id, leg in self.legs.items():
            if leg.claim is None or not leg.claim.done() or leg.read_began or leg.peer is None:
                continue
            answer = leg.claim.result()
            if isinstance(answer, Granted) and answer.until - time.perf_counter() < PROLONG_SECONDS:
                leg.claim = self.client.claim(leg.peer, leg.lease, self._reader(request_id))

    # It has read

    def read_queued(self, request_id: str) -> None:
        if (leg := self.legs.get(request_id)) and leg.report.reused:
            leg.read_began = time.perf_counter()

    def read_ended(self, request_id: str, failed: bool) -> None:
        leg = self.legs.get(request_id)
        if leg is None or not leg.read_began or leg.read_ended:
            return
        if failed:
            leg.read_failed()
            return
        leg.read_ended = self._last_read[leg.engine_id] = time.perf_counter()
        seconds, nbytes = leg.read_ended - leg.read_began, int(leg.report.reused * self.bytes_per_token)
        self.counts.observe("read_back_seconds", seconds)
        self.counts.observe("read_back_bytes", nbytes)
        if (meter := self.peers.get(leg.engine_id)) is not None:
            meter.read(nbytes, seconds)
        else:
            self.peers[leg.engine_id] = TransferMeter()  # a first read pays for the handshake, and says little

    # It is done

    def turn_done(self, request: Request, completed: bool) -> TurnReport | None:
        """The report of a leg that was completed, or aborted on the way; None for one that never was ours."""
        leg = self.legs.pop(request.request_id, None)
        if leg is None:
            return None
        if not completed:
            if not request.kv_transfer_params.get("_remote_blocks_processed"):
                self._leave(request, leg)
            return None
        self._measure(leg)
        report = leg.report
        self.counts.add("turns", report.path, report.reason)
        refused = report.offered - report.verified
        for kind, tokens in (("offered", report.offered), ("verified", report.verified), ("refused", refused),
                             ("reused", report.reused), ("local", report.local)):  # fmt: skip
            if tokens > 0:
                self.counts.add("tokens", kind, by=tokens)
        if report.offered:
            logger.info("neuron-pd: turn request=%s %s", request.request_id, report)
        return report

    def _measure(self, leg: Leg) -> None:
        if not leg.began:
            return
        now = time.perf_counter()
        held = leg.report.local + leg.report.reused
        self.prefill.computed(max(leg.report.prompt - held, 1), held, now - (leg.read_ended or leg.began))
        read = leg.read_ended - leg.read_began if leg.read_ended else 0.0
        took = now - leg.began
        if leg.expected:
            self.counts.observe("expected_error_seconds", abs(took - leg.expected))
        took_ms, read_ms, expected_ms = (round(1000 * seconds, 3) for seconds in (took, read, leg.expected))
        leg.report = replace(leg.report, took_ms=took_ms, read_ms=read_ms, expected_ms=expected_ms)

    def _leave(self, request: Request, leg: Leg) -> None:
        """Nothing is read of what was offered, and D may have its own back: by our claims, or as upstream does it."""
        if leg.report.reason == Reason.UNVERIFIED:
            request.kv_transfer_params["remote_num_tokens"] = 0
            return
        withdraw(request.kv_transfer_params)
        if leg.lease and leg.peer and leg.engine_id != self.engine_id:
            self.client.release(leg.peer, leg.lease, self._reader(request.request_id))

    def _reader(self, request_id: str) -> str:
        return f"{self.engine_id}/{request_id}"


def withdraw(params: Params) -> None:
    """Take the remote blocks out of a request's parameters: nothing is read and nobody is told."""
    for name in [name for name in params if name.startswith("remote_")]:
        del params[name]


def _recompute(request: Request, reason: Reason, offered: int = 0) -> TurnReport:
    path = Path.RECOMPUTE.value
    return TurnReport(path, reason.value, request.num_prompt_tokens, offered, verified=0, reused=0, local=0)
