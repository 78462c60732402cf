"""Blocks that D keeps after a turn and names in its answer, once: our pin mode, and vLLM's own connector.

An offer is remembered beside the turn, handed to one P, and to none when it is about to expire. In pin mode P verifies
it, and D is asked to renew it first. vLLM's own P verifies nothing and would compute on with another prompt's KV, so
there the proxy does it: it asks D how the prompts of both turns tokenise, and offers no more than what they share.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from neuron_pd.core.fingerprint import Fingerprint, Seed
from neuron_pd.core.transfer import FINGERPRINT, HANDLE
from neuron_pd.errors import TransferParamsError
from neuron_pd.proxy.apis import chat, completions
from neuron_pd.proxy.bodies import Generate, dump
from neuron_pd.proxy.engines import Engine
from neuron_pd.proxy.http import UpstreamError
from neuron_pd.proxy.leases import Lease, Leases
from neuron_pd.proxy.legs import Legs
from neuron_pd.proxy.store import Known, Offer, Store

MARGIN = 0.1  # of an offer's time is left for P to begin with it
STEP = 16  # tokens to a digest: D's own blocks are as many or more
# What renders a chat prompt, as vLLM's /tokenize takes it; with any other of the second kind it would render another.
RENDERED = frozenset(
    ("model", "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
     "continue_final_message", "add_special_tokens")
)  # fmt: skip
NOT_RENDERED = ("documents", "reasoning_effort", "tool_choice", "mm_processor_kwargs", "media_io_kwargs")


class Offers:
    """Keeps and takes offers. `ttl`: seconds for which engines with vLLM's own connector keep a turn; 0: unused."""

    def __init__(self, store: Store, legs: Legs, leases: Leases, ttl: float) -> None:
        self._store, self._legs, self._leases, self._ttl = store, legs, leases, ttl

    def usable(self, holder: Engine, prefill: Engine) -> bool:
        """Whether offers of this D may go to this P."""
        if holder.info is None:
            return prefill.info is None and self._ttl > 0
        return holder.offers and holder.reads_back and prefill.reads_back

    async def to_keep(self, engine: Engine, params: Mapping[str, Any], call: Generate) -> Offer | None:
        """What to remember of D's answer; None where it offers nothing, or nothing that can be used."""
        if not params.get("remote_block_ids"):
            return None
        if engine.info is not None:
            seconds = engine.info.decoder_kv_blocks_ttl
        else:
            seconds = self._ttl
            tokens = await self._tokens(engine, call)
            if tokens is None or seconds == 0:
                return None
            params = {**params, FINGERPRINT: Fingerprint.of(tokens, STEP, Seed("")).as_json()}
        return Offer(orjson.dumps(params), seconds * (1 - MARGIN))

    async def take(self, holder: Engine, known: Known, call: Generate) -> Lease | str:
        """The offer of a turn, for one P; or why there is none."""
        kept = await self._store.take(known.handle)
        params = orjson.loads(kept) if kept else None
        if not isinstance(params, dict):
            return "offer_gone"
        lease = Lease(holder, holder.reachable(params))
        if holder.info is not None:
            return await self._renewed(lease)
        tokens = await self._tokens(holder, call)
        return "unverifiable" if tokens is None else _shared(lease, tokens)

    async def _renewed(self, lease: Lease) -> Lease | str:
        try:
            failure = await self._leases.renew(lease)
        except asyncio.CancelledError:  # the client left, and nobody else has this offer now
            self._leases.release(lease)
            raise
        return lease if failure is None else failure

    async def outdated(self, holder: Engine, known: Known) -> None:
        """Let D go of what an earlier turn still offers: a later one has taken its place."""
        if holder.info is not None and (kept := await self._store.take(known.handle)):
            self.decline(holder, orjson.loads(kept))

    def decline(self, engine: Engine, params: Mapping[str, Any] | None) -> None:
        """Let D go of what it offers: nobody will come for it."""
        if engine.offers and params and params.get("remote_request_id"):
            self._leases.release(Lease(engine, dict(params)))

    async def _tokens(self, engine: Engine, call: Generate) -> list[int] | None:
        body = tokenize_body(call)
        try:
            return None if body is None else await self._legs.tokenize(engine, dump(body))
        except UpstreamError:
            return None


def tokenize_body(call: Generate) -> dict[str, Any] | None:
    """The request to /tokenize that renders the prompt of `call`; None where there is none that surely does."""
    body = call.body
    if call.api is completions.API:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            return None
        return {name: body[name] for name in ("model", "prompt", "add_special_tokens") if name in body}
    if call.api is not chat.API or any(body.get(name) is not None for name in NOT_RENDERED):
        return None
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(_is_text(message) for message in messages):
        return None
    return {name: value for name, value in body.items() if name in RENDERED}


def _is_text(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(chat.plain(message.get("content")), str)


def _shared(lease: Lease, tokens: list[int]) -> Lease | str:
    """The lease cut to whole blocks of what the fingerprint vouches for."""
    params = lease.params
    try:
        matching = Fingerprint.from_json(params.pop(FINGERPRINT, None)).matches(tokens, Seed(""))
    except TransferParamsError:
        return "unverifiable"
    groups, total = params.get("remote_block_ids"), params.get("remote_num_tokens")
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(total, int):
        return "unverifiable"
    size = _block_size(len(groups[0]), total)
    if size is None:
        return "unverifiable"
    # The last token of a prompt is computed in any case.
    blocks = min(matching, len(tokens) - 1) // size
    if blocks == 0:
        return "mismatch"
    params.pop(HANDLE, None)
    return Lease(lease.engine, {**params, "remote_block_ids": [groups[0][:blocks]], "remote_num_tokens": blocks * size})


def _block_size(blocks: int, tokens: int) -> int | None:
    """The power of two that makes so many blocks of so many tokens; None where that is not one."""
    found = [size for size in (1 << power for power in range(3, 13)) if -(-tokens // size) == blocks]
    return found[0] if len(found) == 1 else None
