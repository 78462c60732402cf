"""One generated turn, as one coroutine.

which conversation is this? ─► acquire D's handle ─► prefill on P ─► decode on D, streamed ─► remember the new handle
                                                        └─► give an unread lease back
"""

import asyncio
import logging
from collections.abc import Sequence

from neuron_pd.core.transfer import HANDLE, Params, second_leg
from neuron_pd.proxy import history
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
from neuron_pd.proxy.leases import Lease, Leases
from neuron_pd.proxy.legs import new_handle, unavailable
from neuron_pd.proxy.relay import BrokenOff, is_stream, relay
from neuron_pd.proxy.reply import FinishTap, JsonTap, StreamTap, Tap
from neuron_pd.proxy.router import Router
from neuron_pd.proxy.start import Start, Starter
from neuron_pd.proxy.store import Known, Store
from neuron_pd.proxy.tenants import Tenant
from neuron_pd.proxy.tracing import NO_SPAN, Span
from neuron_pd.proxy.ways import Direct

log = logging.getLogger("neuron_pd.proxy")


def _params(start: Start, handle: str | None) -> Params | None:
    """What D is told: where P's blocks are, where there are any, and the name under which it records the turn."""
    if start.prefilled is not None and start.prefilled.params is not None:
        return second_leg(start.prefilled.params, handle)
    return None if handle is None else {HANDLE: handle}


class Turn:
    """One request for generated text, from the client's body to the last byte of its answer."""

    tap: Tap  # on D's answer
    at: Engine | None = None  # the D that was asked last
    let_go: Lease | None = None  # of a direct turn, once D has begun
    known: Known | None = None  # the turn before
    mine = True  # and whether it is of this conversation

    def __init__(self, router: Router, request: Request, responder: Responder, tenant: Tenant) -> None:
        self.router = router
        self.engines, self.store, self.metrics = router.engines, router.store, router.metrics
        self.legs, self.leases, self.offers, self.ways = router.legs, router.leases, router.offers, router.ways
        self.request = request
        self.responder = responder
        self.api = GENERATE[request.path]
        self.call = Generate(self.api, request.body)
        body = self.call.body
        tenant.require(self.call.model)
        scope = Scope(tenant.name, self.call.model, body.get("cache_salt"), router.secret)
        self.conversation = identify(request, body, self.api, scope)
        self.account = Account(router.metrics, router.tracing.turn(request))

    async def serve(self) -> int:
        """Answer the request; the status. Refusal while nothing was sent; BrokenOff once the client has been told."""
        account = self.account
        with account.span as span:
            try:
                alone = self.call.alone()
                if alone is None:
                    await self._together()
                else:
                    await self._by_d(alone)
            except asyncio.CancelledError:
                account.status = CLIENT_LEFT
                if self.responder.client_left:
                    self.metrics.disconnects.add(account.phase)
                raise
            except Refusal as refusal:
                account.status = refusal.status
                raise
            except BrokenOff:
                self.metrics.aborted.add()
                raise
            finally:
                account.close()
                self.request.turn = account.facts
                if span is not NO_SPAN:
                    span.note(status=account.status, model=self.call.model, **account.facts())
        return account.status

    async def _by_d(self, alone: Alone) -> None:
        """D serves the turn without a hand-off; where it can be recorded, the next one starts from it all the same."""
        self.account.alone, self.account.reason = True, alone
        self.metrics.alone.add(alone)
        if alone.recorded:
            await self._find()
        at = self.engines.for_decode(self.known.decode) if self.known else None
        try:
            await self._decode(at, Start(), [], recorded=alone.recorded)
        except UpstreamError as error:
            raise unavailable("decode", error) from error

    async def _find(self) -> None:
        """What is known of this conversation; else of one that may begin like it, or whose D is a good choice."""
        conversation = self.conversation
        known = await self.store.first(conversation.lookup) if conversation.lookup else None
        self.metrics.conversations.add(conversation.source, "yes" if known else "no")
        if known is None and conversation.hint is not None:
            self.mine = False
            known = await self.store.first([conversation.hint.key])
            if known is not None and not conversation.hint.prefix:
                known = known._replace(handle="")
        self.known = known

    async def _together(self) -> None:
        """P and D share the turn. Where D is lost before any of its answer was there, once more from the beginning."""
        await self._find()
        known, offers = self.known, self.offers if self.mine else None
        starter = Starter(self.router, self.request, self.call, self.account, known, offers)
        lost: list[Engine] = []
        for last in (False, True):
            decode = self.engines.for_decode(known.decode if known else None, lost)
            start = await starter.start(decode)
            try:
                await self._decode(decode if known else None, start, lost)
                return
            except UpstreamError as error:
                if last or isinstance(error, TimedOut):
                    raise unavailable("decode", error) from error
                if len(self.engines.decode) > 1 and not isinstance(error, StaleConnection):
                    lost.append(self.at or decode)

    # ---- the second leg

    async def _decode(self, decode: Engine | None, start: Start, lost: list[Engine], recorded: bool = True) -> None:
        """D's answer to the client. UpstreamError when D was lost with nothing sent to the client."""
        handle = self._new_handle() if recorded and not self.conversation.final else None
        try:
            with self.account.span.leg("decode") as span:
                decode, response = await self._reach(decode, start, handle, lost, span)
                try:
                    await self._answer(decode, response, start)
                finally:
                    decode.end(1)
                    response.close()
                    if self.account.status == 200:
                        await self._finished(decode, handle, start)
        finally:
            self._let_go(start)

    def _new_handle(self) -> str:
        return new_handle(history.mark(self.call.body) if self.ways.mode is not Direct.OFF else None)

    async def _reach(
        self, decode: Engine | None, start: Start, handle: str | None, lost: list[Engine], span: Span
    ) -> tuple[Engine, Response]:
        """The head of D's answer, and the D that gave it: another one where the first cannot be connected to.

        P's blocks are given back when no D was reached. Once a D may have read them, no other may.
        """
        avoid, taken = list(lost), False
        again = start.prefilled is None or start.prefilled.params is None
        extra = (*start.ranks, *span.headers)
        self.account.decoding()
        try:
            while True:
                decode = self.at = decode or self.engines.for_decode(avoid=avoid)
                span.at(decode)
                body = self.call.for_decode(_params(start, handle if decode.reads_back else None))
                decode.begin(1)  # its `end` is due once the response is through
                try:
                    response = await self.legs.decode(decode, self.request, body, again, extra)
                except BaseException as error:
                    decode.end(1)
                    taken = not isinstance(error, ConnectFailed)
                    if taken or start.direct:
                        raise
                else:
                    taken = True
                    return decode, response
                avoid.append(decode)
                decode = None
        finally:
            if not taken and start.prefilled is not None:
                self.leases.strand(start.prefilled.engine, start.prefilled.params)

    async def _answer(self, decode: Engine, response: Response, start: Start) -> None:
        streamed = is_stream(response)
        self.account.began_answer(response.status, streamed)
        self.tap = self._new_tap(decode, streamed)
        feed, waiting = self.tap.feed, streamed and response.status == 200

        def learn(data: bytes) -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                self._began(decode, start)
            feed(data)

        try:
            await relay(response, self.responder, self.account.headers(), learn)
        except BrokenOff as error:
            self.account.status = 502
            decode.breaker.failed()
            self.metrics.failures.add("decode", "broken_off")
            log.warning("decode leg on %s broke off: %s", decode.url, error)
            raise
        except UpstreamError as error:
            self.legs.failed(decode, "decode", error)
            raise

    def _new_tap(self, decode: Engine, streamed: bool) -> Tap:
        if not streamed:
            return JsonTap(self.api)
        read = self.conversation.needs_reply or self.api.always_read or decode.offers
        return StreamTap(self.api) if read else FinishTap(self.api)

    async def _finished(self, decode: Engine, handle: str | None, start: Start) -> None:
        """Keep where this turn is, or, at the end of a session, forget those before it."""
        reply, conversation = self.tap.reply(), self.conversation
        if not reply.finished:
            return
        if conversation.final:
            await end_of_session(self.store, self.engines, self.leases, conversation.lookup)
        if handle is None or not (keys := conversation.finished(reply)):
            self.offers.decline(decode, reply.params)
            return
        known = Known(decode.url, handle, start.prefill, start.tokens)
        offer = await self.offers.to_keep(decode, reply.params, self.call) if reply.params else None
        await self.store.put(keys, known, offer, conversation.outgrown())
        before = self.engines.holder(self.known.decode) if self.known and self.mine else None
        if before is not None and before.offers and self.known is not None:
            await self.offers.outdated(before, self.known)

    def _began(self, decode: Engine, start: Start) -> None:
        """D's first token is there: what it took is learned, and a history that was held for it need not be longer."""
        seconds = self.account.first_token()
        if start.offered is not None:
            self.ways.served(decode.meters, start.offered, seconds)
        elif start.lacking:
            self.ways.handed_off(decode.meters, start.lacking, seconds)
        self._let_go(start)

    def _let_go(self, start: Start) -> None:
        if start.lease is not None and start.lease is not self.let_go:
            self.let_go = start.lease
            self.leases.release(start.lease)


async def end_of_session(store: Store, engines: Engines, leases: Leases, keys: Sequence[bytes]) -> int:
    """Forget a conversation, here and at its D: how many finished turns that were."""
    turns = await store.drop(keys)
    for known in turns:
        engine = engines.holder(known.decode)
        if engine is not None:
            leases.forget(engine, known.handle)
    return len(turns)
