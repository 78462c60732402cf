"""One generated turn, as one coroutine.

which conversation is this? ─► acquire D's handle ─► prefill on P ─► decode on D, streamed ─► remember the new handle
                                                        └─► give an unread lease back
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter as now  # the event loop's clock counts whole milliseconds

from neuron_pd.core.transfer import HANDLE, Params, first_leg, second_leg
from neuron_pd.proxy.account import CLIENT_LEFT, Account
from neuron_pd.proxy.apis import GENERATE, Alone
from neuron_pd.proxy.bodies import Generate
from neuron_pd.proxy.conversations import Scope, identify
from neuron_pd.proxy.engines import Engine, Engines
from neuron_pd.proxy.errors import Refusal
from neuron_pd.proxy.http import (
    ConnectFailed,
    Request,
    Responder,
    Response,
    StaleConnection,
    TimedOut,
    UpstreamError,
)
from neuron_pd.proxy.legs import Lease, Legs, Prefilled, PrefillFailed, new_handle, unavailable
from neuron_pd.proxy.metrics import Metrics
from neuron_pd.proxy.relay import BrokenOff, is_stream, relay
from neuron_pd.proxy.reply import FinishTap, JsonTap, StreamTap, Tap
from neuron_pd.proxy.store import Known, Store
from neuron_pd.proxy.tenants import Tenant

log = logging.getLogger("neuron_pd.proxy")

REUSE_HEADER, OFF = b"x-neuron-pd-reuse", b"off"
PREFILL_ATTEMPTS = 3
BYTES_PER_TOKEN = 4


def _params(prefilled: Prefilled | None, handle: str | None) -> Params | None:
    """What D is told: where P's blocks are, where there are any, and the name under which it records the turn."""
    if prefilled is not None and prefilled.params is not None:
        return second_leg(prefilled.params, handle)
    return None if handle is None else {HANDLE: handle}


@dataclass(frozen=True, slots=True)
class Router:
    """What every turn needs. `secret`: of the keys of conversations."""

    engines: Engines
    store: Store
    legs: Legs
    metrics: Metrics
    secret: bytes = b""


class Turn:
    """One request for generated text, from the client's body to the last byte of its answer."""

    def __init__(self, router: Router, request: Request, responder: Responder, tenant: Tenant) -> None:
        self.engines, self.store, self.legs, self.metrics = router.engines, router.store, router.legs, router.metrics
        self.request = request
        self.responder = responder
        self.account = Account(router.metrics)
        self.api = GENERATE[request.path]
        self.call = Generate(self.api, request.body)
        body = self.call.body
        tenant.require(self.call.model)
        scope = Scope(tenant.name, self.call.model, body.get("cache_salt"), router.secret)
        self.conversation = identify(request, body, self.api, scope)
        self.tap: Tap = FinishTap(self.api)
        self.at: Engine | None = None  # the D that was asked last

    async def serve(self) -> int:
        """Answer the request; the status. Refusal while nothing was sent; BrokenOff once the client has been told."""
        try:
            await self._serve()
        except asyncio.CancelledError:
            self.account.status = CLIENT_LEFT
            if self.responder.client_left:
                self.metrics.disconnects.add(self.account.phase)
            raise
        except Refusal as refusal:
            self.account.status = refusal.status
            raise
        except BrokenOff:
            self.metrics.aborted.add()
            raise
        finally:
            self.account.close()
        return self.account.status

    async def _serve(self) -> None:
        alone = self.call.alone()
        if alone is None:
            await self._together()
        else:
            await self._by_d(alone)

    async def _by_d(self, alone: Alone) -> None:
        """D serves the turn without a hand-off; where it can be recorded, the next one starts from it all the same."""
        self.account.alone, self.account.reason = True, alone
        self.metrics.alone.add(alone)
        known = await self._find() if alone.recorded else None
        at = self.engines.for_decode(known.decode) if known else None
        try:
            await self._decode(at, None, [], recorded=alone.recorded)
        except UpstreamError as error:
            raise unavailable("decode", error) from error

    async def _find(self) -> Known | None:
        """What is known of this conversation; else of one that may begin like it, or whose D is a good choice."""
        conversation = self.conversation
        known = await self.store.first(conversation.lookup) if conversation.lookup else None
        self.metrics.conversations.add(conversation.source, "yes" if known else "no")
        if known is None and conversation.hint is not None:
            known = await self.store.first([conversation.hint.key])
            if known is not None and not conversation.hint.prefix:
                known = known._replace(handle="")
        return known

    async def _together(self) -> None:
        """P and D share the turn. Where D is lost before any of its answer was there, once more from the beginning."""
        known = await self._find()
        lost: list[Engine] = []
        for last in (False, True):
            decode = self.engines.for_decode(known.decode if known else None, lost)
            prefilled = await self._prefill(decode, known)
            try:
                await self._decode(decode if known else None, prefilled, lost)
                return
            except UpstreamError as error:
                if last or isinstance(error, TimedOut):
                    raise unavailable("decode", error) from error
                if len(self.engines.decode) > 1 and not isinstance(error, StaleConnection):
                    lost.append(self.at or decode)

    # ---- the first leg

    async def _prefill(self, decode: Engine, known: Known | None) -> Prefilled:
        """P's answer, from the first P that gives one; each attempt has a lease of its own."""
        failed: PrefillFailed | None = None
        avoid: list[Engine] = []
        for _ in range(PREFILL_ATTEMPTS):
            try:
                prefill = self.engines.for_prefill(avoid)
            except Refusal:
                if failed is None:
                    raise
                break
            try:
                return await self._prefill_on(prefill, await self._acquire(prefill, decode, known))
            except PrefillFailed as error:
                failed = error
                if not isinstance(error.__cause__, StaleConnection):
                    avoid.append(prefill)
        assert failed is not None
        raise failed.refusal from failed

    async def _acquire(self, prefill: Engine, decode: Engine, known: Known | None) -> Lease | None:
        """A lease on what D still has of this conversation; None, and the reason, where this turn starts cold."""
        account = self.account
        account.reason = self._no_reuse(prefill, decode, known)
        if known is None or account.reason:
            return None
        account.phase, began = "acquire", now()
        lease = await self.legs.acquire(decode, known.handle)
        account.acquired(began)
        if isinstance(lease, Lease):
            return lease
        account.reason = lease
        return None

    def _no_reuse(self, prefill: Engine, decode: Engine, known: Known | None) -> str:
        if self.request.get(REUSE_HEADER) == OFF:
            return "off"
        if known is None or not known.handle:
            return "none"
        if decode.url != known.decode:
            return "decode_moved"
        if not decode.reads_back:
            return "decode_without_reuse"
        return "" if prefill.reads_back else "prefill_without_reuse"

    async def _prefill_on(self, prefill: Engine, lease: Lease | None) -> Prefilled:
        self.account.phase, began = "prefill", now()
        body = self.call.for_prefill(first_leg(lease.params if lease else None))
        weight = len(body) // BYTES_PER_TOKEN
        prefill.begin(weight)
        try:
            answer = await self.legs.prefill(prefill, self.request, body, leased=lease is not None)
            if answer.report is not None and answer.report.reused > 0:
                lease = None  # P has read it, and D was told
        finally:
            prefill.end(weight)
            if lease is not None:
                self.legs.release(lease)
        self.account.prefilled(began, answer)
        return answer

    # ---- the second leg

    async def _decode(
        self, decode: Engine | None, prefilled: Prefilled | None, lost: list[Engine], recorded: bool = True
    ) -> None:
        """D's answer to the client. UpstreamError when D was lost with nothing sent to the client."""
        handle = new_handle() if recorded and not self.conversation.final else None
        decode, response = await self._reach(decode, prefilled, handle, lost)
        try:
            await self._answer(decode, response)
        finally:
            decode.end(1)
            response.close()
            if self.account.status == 200:
                await self._remember(decode, handle, prefilled)

    async def _reach(
        self, decode: Engine | None, prefilled: Prefilled | None, handle: str | None, lost: list[Engine]
    ) -> tuple[Engine, Response]:
        """The head of D's answer, and the D that gave it: another one where the first cannot be connected to.

        P's blocks are given back when no D was reached. Once a D may have read them, no other may.
        """
        self.account.phase, avoid, taken = "decode", list(lost), False
        try:
            while True:
                decode = self.at = decode or self.engines.for_decode(avoid=avoid)
                try:
                    response = await self._ask(decode, _params(prefilled, handle if decode.reads_back else None))
                except BaseException as error:
                    taken = not isinstance(error, ConnectFailed)
                    if taken:
                        raise
                else:
                    taken = True
                    return decode, response
                avoid.append(decode)
                decode = None
        finally:
            if not taken and prefilled is not None:
                self.legs.strand(prefilled)

    async def _ask(self, decode: Engine, params: Params | None) -> Response:
        """Send D the request; `decode.end` is due once the response is through."""
        decode.begin(1)
        try:
            return await self.legs.decode(
                decode, self.request, self.call.for_decode(params), again=params is None or tuple(params) == (HANDLE,)
            )
        except BaseException:
            decode.end(1)
            raise

    async def _answer(self, decode: Engine, response: Response) -> None:
        self.account.began_answer(response.status)
        self.tap = self._new_tap(response)
        try:
            await relay(response, self.responder, self.account.headers(), self.tap.feed)
        except BrokenOff as error:
            self.account.status = 502
            decode.breaker.failed()
            self.metrics.failures.add("decode", "broken_off")
            log.warning("decode leg on %s broke off: %s", decode.url, error)
            raise
        except UpstreamError as error:
            self.legs.failed(decode, "decode", error)
            raise

    def _new_tap(self, response: Response) -> Tap:
        if not is_stream(response):
            return JsonTap(self.api)
        return StreamTap(self.api) if self.conversation.needs_reply or self.api.always_read else FinishTap(self.api)

    async def _remember(self, decode: Engine, handle: str | None, prefilled: Prefilled | None) -> None:
        """Keep where this turn is, or, at the end of a session, forget those before it."""
        reply = self.tap.reply()
        if not reply.finished:
            return
        if self.conversation.final:
            await end_of_session(self.store, self.engines, self.legs, self.conversation.lookup)
        elif handle is not None and (keys := self.conversation.finished(reply)):
            known = self._known(decode, handle, prefilled)
            await self.store.put(keys, known, forget=self.conversation.outgrown())

    @staticmethod
    def _known(decode: Engine, handle: str, prefilled: Prefilled | None) -> Known:
        prefill = prefilled.engine.url if prefilled else ""
        tokens = prefilled.report.prompt if prefilled and prefilled.report else 0
        return Known(decode.url, handle, prefill, tokens)


async def end_of_session(store: Store, engines: Engines, legs: Legs, keys: Sequence[bytes]) -> int:
    """Forget a conversation, here and at its D: how many finished turns that were."""
    turns = await store.drop(keys)
    for known in turns:
        engine = engines.holder(known.decode)
        if engine is not None:
            legs.forget(engine, known.handle)
    return len(turns)
