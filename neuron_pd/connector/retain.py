"""What D keeps of finished turns for the next one: records, leases on them, and in pin mode the blocks themselves.

Touched by the engine's thread only, except `answer`, which the side channel's thread calls.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import uuid4

from vllm.logger import init_logger
from vllm.v1.request import Request

from neuron_pd.connector import compat
from neuron_pd.connector.stats import Counts
from neuron_pd.core.control import AcquireMiss
from neuron_pd.core.fingerprint import Fingerprint, Seed
from neuron_pd.core.lease import Leases, Refused
from neuron_pd.core.ledger import Ledger, Record
from neuron_pd.core.settings import Settings
from neuron_pd.core.transfer import FINGERPRINT, HANDLE, Params, first_leg

logger = init_logger("vllm.neuron_pd")


class Exposure(Protocol):
    """How blocks become readable for a peer: as they are, or by way of a buffer (staging.py)."""

    def fitting(self, blocks: list[Any]) -> list[Any]: ...
    def expose(self, name: str, blocks: list[int]) -> list[int]: ...
    def when_exposed(self, name: str, answer: Any) -> Any: ...


class Retention:
    """D's side of one engine.

    `serves`: this engine can be read back from. `address`: the transfer parameters that say where it is. `pool_blocks`:
    the KV blocks of `block_size` tokens that it has.
    """

    def __init__(
        self,
        settings: Settings,
        counts: Counts,
        seed: Callable[[Request], Seed],
        *,
        serves: bool,
        address: Params,
        block_size: int,
        pool_blocks: int,
        exposure: Exposure,
    ) -> None:
        self.settings, self.counts, self.seed = settings, counts, seed
        self.serves, self.address, self.block_size = serves, address, block_size
        self.pin_budget = int(settings.pin_budget * pool_blocks)
        self.exposure = exposure
        self.ledger = Ledger(settings.ledger_bytes)
        self.leases: Leases[Any] = Leases()
        self._pool: Any = None
        self._opened: list[str] = []

    # A turn ends

    def turn_ended(self, request: Request, blocks: Sequence[int], finished: bool) -> Params | None:
        """Record a turn; in pin mode its blocks are to be kept, and what it answers tells P where they are.

        None when nothing is to be kept: the blocks go back to the prefix cache. `finished`: it ran to its end.
        """
        params = request.kv_transfer_params
        handle = params.get(HANDLE)
        if not self.serves or (handle is None and not self.settings.pins):
            return None
        if not isinstance(handle, str | None) or not compat.is_verifiable(request):
            self.counts.add("records", "refused")
            return None
        handle = handle or uuid4().hex
        record = self._record(handle, request)
        return self._pin(handle, request, blocks, record) if record and finished and self.settings.pins else None

    def _record(self, handle: str, request: Request) -> Record | None:
        count = min(len(request.block_hashes), compat.computed_tokens(request) // self.block_size)
        if count == 0:
            return None
        hashes = request.block_hashes[:count]
        items = compat.items(request)
        chain = Fingerprint.of(request.all_token_ids, self.block_size, self.seed(request), limit=count, items=items)
        record = Record(b"".join(hashes), len(hashes[0]), chain)
        self.ledger.put(handle, record)
        self.counts.add("records", "kept")
        return record

    def _pin(self, handle: str, request: Request, blocks: Sequence[int], record: Record) -> Params | None:
        self.leases.give_back(handle)  # an earlier turn, or another choice of this one, under the same name
        kept = blocks[: len(record)]
        while self.leases.retained_blocks + len(blocks) > self.pin_budget:
            if not self.leases.give_up_oldest():
                self.counts.add("pins", "over_budget")
                return None
        deadline = time.perf_counter() + self.settings.decoder_kv_blocks_ttl
        self.leases.open(handle, blocks, deadline, lease_id=request.request_id, retained=True)
        self.counts.add("pins", "kept")
        return {**self._params(request.request_id, deadline, kept, record.fingerprint), HANDLE: handle}

    # Acquire, renew, release: the control path

    def acquire(self, handle: str, pool: Any) -> Any:
        """Lease what is still cached of the record `handle`: transfer parameters for P, or {"reason": AcquireMiss}.

        A future of it where the blocks have to be copied first.
        """
        self._pool = pool
        miss, lease = self._lease(handle, pool)
        self.counts.add("acquires", miss or "leased")
        if miss:
            return {"reason": miss}
        return self.exposure.when_exposed(lease["remote_request_id"], {"kv_transfer_params": lease})

    def _lease(self, handle: str, pool: Any) -> tuple[AcquireMiss | None, Params]:
        # Hashes finer than a block (vLLM's partial hits) would name other blocks than the record means.
        if not self.serves or pool.hash_block_size != self.block_size:
            return AcquireMiss.DISABLED, {}
        if (record := self.ledger.get(handle)) is None:
            return AcquireMiss.UNKNOWN_HANDLE, {}
        blocks = compat.cached_prefix(pool, tuple(record.block_hashes()))
        if not blocks:
            return AcquireMiss.EVICTED, {}
        if not (blocks := self.exposure.fitting(blocks)):
            return AcquireMiss.STAGING_FULL, {}
        pool.touch(blocks)
        lease = self.leases.open(handle, blocks, time.perf_counter() + self.settings.read_lease_seconds)
        self._opened.append(lease.id)
        ids = self.exposure.expose(lease.id, [block.block_id for block in blocks])
        return None, self._params(lease.id, lease.deadline, ids, record.fingerprint)

    def _params(self, lease_id: str, deadline: float, blocks: Sequence[int], chain: Fingerprint) -> Params:
        return first_leg(
            {
                **self.address,
                "remote_block_ids": [list(blocks)],
                "remote_request_id": lease_id,
                "remote_num_tokens": len(blocks) * self.block_size,
                "remote_blocks_expiry_time": deadline,
                FINGERPRINT: chain.first(len(blocks)).as_json(),
            }
        )

    def renew(self, name: str) -> dict[str, Any]:
        """Prolong a lease, or those of a handle: {"renewed": leases, "ttl": seconds}, or {"reason": AcquireMiss}."""
        now = time.perf_counter()
        renewed = self.leases.renew(name, now + self.settings.read_lease_seconds, now)
        if any(lease.retained for lease in renewed):
            self.leases.renew(name, now + self.settings.decoder_kv_blocks_ttl, now)
        if not renewed:
            return {"reason": AcquireMiss.UNKNOWN_HANDLE}
        return {"renewed": len(renewed), "ttl": min(lease.deadline for lease in renewed) - now}

    def release(self, name: str) -> int:
        """Forget the record of a handle, and give back unread the leases that it or `name` names: how many."""
        self.ledger.drop(name)
        return self.leases.give_back(name)

    # The side channel

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """A reader's claim or release of a lease. KeyError or TypeError for what is neither."""
        verb, lease, reader = str(message["verb"]), str(message["lease"]), str(message["reader"])
        if verb == "release":
            return {"released": self.leases.give_back(lease, reader)}
        if verb != "claim":
            raise KeyError(verb)
        now = time.perf_counter()
        deadline = self.leases.claim(lease, reader, now, self.settings.read_lease_seconds)
        if isinstance(deadline, Refused):
            return {"refused": deadline}
        return {"deadline": deadline, "seconds": deadline - now}

    # Steps of the engine

    def closing(self) -> list[str]:
        """The leases that the workers are to let go of, those that expire now among them."""
        for lease in self.leases.expire(time.perf_counter()):
            if not lease.retained:
                logger.warning("neuron-pd: lease %s expired %s", lease.id, "while read" if lease.reader else "unread")
        return self.leases.take_closing()

    def take_opened(self) -> list[str]:
        """The leases that the workers do not know of yet."""
        opened, self._opened = self._opened, []
        return opened

    def ended(self, lease_id: str) -> bool:
        """The workers have let go of a lease; whether its blocks are vLLM's to free, as those of a finished request."""
        ended = self.leases.end(lease_id)
        if ended is None:
            return True
        self.counts.add("leases", ended.how)
        if not ended.lease.retained:
            # In reverse, as vLLM frees a request: the tail of a sequence is evicted first, what remains is a prefix.
            self._pool.free_blocks(reversed(ended.lease.blocks))
        return ended.lease.retained

    def gauges(self) -> dict[str, float]:
        return {
            "open_leases": len(self.leases),
            "pinned_blocks": self.leases.pinned_blocks,
            "retained_blocks": self.leases.retained_blocks,
            "ledger_records": len(self.ledger),
            "ledger_bytes": self.ledger.nbytes,
        }
