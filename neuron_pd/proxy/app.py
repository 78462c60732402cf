"""The proxy as one object: routes, and everything that runs beside the requests."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from socket import socket
from time import perf_counter
from typing import Self

import orjson

from neuron_pd.errors import UsageError
from neuron_pd.proxy import admin, engine_calls, tracing, ui
from neuron_pd.proxy.access_log import AccessLog
from neuron_pd.proxy.account import CLIENT_LEFT
from neuron_pd.proxy.admission import Admission
from neuron_pd.proxy.apis import GENERATE
from neuron_pd.proxy.breaker import Breaker
from neuron_pd.proxy.conversations import Scope, response_key
from neuron_pd.proxy.engines import Engine, Engines, Role, Target
from neuron_pd.proxy.errors import JSON, Refusal, error_body
from neuron_pd.proxy.http import Client, Request, Responder, Server, Timeouts
from neuron_pd.proxy.leases import Leases
from neuron_pd.proxy.legs import Legs
from neuron_pd.proxy.metrics import Metrics
from neuron_pd.proxy.offers import Offers
from neuron_pd.proxy.passthrough import pass_through
from neuron_pd.proxy.pools.discovery import Discovery
from neuron_pd.proxy.pools.roster import Roster
from neuron_pd.proxy.pools.source import Member, Plan
from neuron_pd.proxy.probe import Probe, control_headers
from neuron_pd.proxy.relay import BrokenOff
from neuron_pd.proxy.router import Router
from neuron_pd.proxy.sessions import SESSIONS, end_session
from neuron_pd.proxy.settings import Pools, Settings
from neuron_pd.proxy.siblings import PART, STATE, Seat, Siblings
from neuron_pd.proxy.store import Store, open_store
from neuron_pd.proxy.tenants import Anyone, Keys, Tenant, Tenants
from neuron_pd.proxy.turn import Turn
from neuron_pd.proxy.ways import Ways

log = logging.getLogger("neuron_pd.proxy")

PAGES = frozenset(("/health", "/ready", "/metrics"))
RESPONSE = "/v1/responses/"
EXPIRE_SECONDS = 2.0

Handler = Callable[[Request, Responder], Awaitable[int]]


class Proxy:
    """`async with Proxy(settings) as proxy:` listens; leaving the block drains and closes.

    `sockets`, bound already, take the place of the address in the settings. `seat`: which of several workers this is.
    """

    def __init__(self, settings: Settings, sockets: Sequence[socket] = (), seat: Seat | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._sockets = sockets
        self._seat = seat or Seat()

    async def __aenter__(self) -> Self:
        """Bind, then look at every engine once. OSError when the port cannot be had, UsageError for bad pools."""
        settings, phases = self.settings, self.settings.phases
        self.client = Client(phases.connect, phases.stall, settings.tls.for_engines())
        self._certificate = settings.tls.for_clients()
        self.admission = Admission(settings.admission, self.metrics.queue_refusals.add)
        self.store: Store = open_store(settings.conversations, self.metrics.store_failures.add)
        clock = asyncio.get_running_loop().time
        self.engines = Engines(balance=settings.choice.balance)
        self.roster = Roster(self.engines, partial(_new_engine, clock), clock, settings.pools.linger)
        self.discovery = Discovery(self.roster, given(settings.pools), settings.pools.file)
        await self.discovery.start()
        self.siblings = Siblings(self._seat, self.client)
        for call in self.siblings.journal():
            engine_calls.repeat(self.roster, call)
        self.tenants: Tenants = Keys(settings.access.keys) if settings.access.keys else Anyone()
        self.legs = Legs(self.client, phases, self.metrics, settings.access)
        key = settings.access.engine_key
        self.leases = Leases(self.client, phases.acquire, settings.token, self.metrics, key)
        # What proxies with one control token share, they find under the same keys; nobody else can guess them.
        secret = sha256(settings.token.encode()).digest() if settings.token else b""
        ways = Ways(settings.choice.direct)
        self.tracing = tracing.to_endpoint(settings.seen.traces)
        self._log = AccessLog(settings.seen.access_log) if settings.seen.access_log else None
        offers = Offers(self.store, self.legs, self.leases, settings.conversations.kept)
        self._router = Router(
            self.engines, self.store, self.legs, self.leases, self.metrics, ways, offers, self.tracing, secret
        )
        self._own: dict[str, Handler] = {
            **dict.fromkeys(PAGES, self._page),
            **dict.fromkeys(engine_calls.CALLS, self._call),
            ui.PAGE: ui.page,
            ui.STATE: self._live,
        }
        self._passing = Timeouts(phases.first_byte, phases.idle)
        admin.watch(self.metrics, self.roster, self.store, self.admission)
        listen = settings.listen
        self.server = Server(self.handle, settings.limits, error_body)
        await self.server.listen(listen.host, listen.port, self._sockets, self._certificate)
        self._private = Server(self._for_sibling, settings.limits, error_body)
        if self._seat.own is not None:
            await self._private.listen_at(str(self._seat.own))
        direct, ttl = settings.choice.direct, settings.conversations.ttl
        self.probe = Probe(self.engines, self.client, settings.token, settings.watch, key, direct, ttl)
        await self.probe.once()
        await self.server.accept()
        await self._private.accept()
        self.roster.changed = self.probe.soon
        self._beside = [asyncio.create_task(self.probe.run()), asyncio.create_task(self._expire())]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close(self.settings.listen.drain)
        await self._private.close()
        await self.discovery.stop()
        for task in self._beside:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.leases.settle(self.settings.phases.acquire)
        await self.client.close()
        await self.store.close()
        await asyncio.to_thread(self.tracing.close)
        if self._log is not None:
            self._log.close()

    @property
    def port(self) -> int:
        return self.server.port

    async def handle(self, request: Request, responder: Responder) -> None:
        """Answer one request, whatever happens."""
        status, began = 500, perf_counter()
        try:
            status = await self._route(request, responder)
        except Refusal as refusal:
            status = refusal.status
            responder.send(status, refusal.headers, refusal.body)
        except BrokenOff:
            status = 502
        except asyncio.CancelledError:
            status = CLIENT_LEFT
            raise
        except Exception:
            log.exception("a request failed inside the proxy")
            if not responder.started:
                responder.send(500, [JSON], error_body(500, "internal error of the proxy"))
        finally:
            path = request.path if request.path in GENERATE or request.path in PAGES else "other"
            self.metrics.requests.add(path, str(status))
            if self._log is not None:
                self._log.request(request, status, began)

    async def _route(self, request: Request, responder: Responder) -> int:
        path = request.path
        if (own := self._own.get(path)) is not None:
            return await own(request, responder)
        if self.server.draining:
            raise Refusal(503, "the proxy is about to stop", "draining", ((b"retry-after", b"1"),))
        tenant = self.tenants.of(request)
        if path.startswith(SESSIONS):
            return await end_session(self._router, request, responder, tenant)
        async with self.admission:
            if path in GENERATE and request.method == b"POST":
                return await Turn(self._router, request, responder, tenant).serve()
            at = await self._holder(request, tenant)
            return await pass_through(self.engines, self.legs, self._passing, request, responder, tenant, at)

    async def _holder(self, request: Request, tenant: Tenant) -> str | None:
        """The D that keeps the response which a path names."""
        if not request.path.startswith(RESPONSE):
            return None
        name = request.path.removeprefix(RESPONSE).partition("/")[0]
        scope = Scope(tenant.name, secret=self._router.secret)
        known = await self.store.first([response_key(scope, name)])
        return known.decode if known else None

    async def _call(self, request: Request, responder: Responder) -> int:
        """A call that concerns the pools, carried out by all workers."""
        answer = engine_calls.carry_out(self.roster, self.settings.token, request)
        if request.method != b"GET":
            await self.siblings.pass_on(request, control_headers(self.settings.token))
        responder.send(200, [JSON], answer)
        return 200

    async def _for_sibling(self, request: Request, responder: Responder) -> None:
        """What another worker asks over the private socket: how this one is, or to carry out a call."""
        try:
            if request.target == STATE:
                said = {**admin.readiness(self.roster, self.server.draining), "metrics": self.metrics.state()}
                responder.send(200, [JSON], orjson.dumps(said))
            elif request.target == PART:
                responder.send(200, [JSON], orjson.dumps(ui.part(self.roster, self.metrics, self.store)))
            else:
                responder.send(200, [JSON], engine_calls.carry_out(self.roster, self.settings.token, request))
        except Refusal as refusal:
            responder.send(refusal.status, refusal.headers, refusal.body)

    async def _live(self, _: Request, responder: Responder) -> int:
        own = ui.part(self.roster, self.metrics, self.store)
        return ui.state(responder, self.roster, [own, *await self.siblings.states(PART)])

    async def _page(self, request: Request, responder: Responder) -> int:
        if request.method not in (b"GET", b"HEAD"):
            raise Refusal(405, "this page is read with GET", "method_not_allowed", ((b"allow", b"GET, HEAD"),))
        if request.path == "/health":
            return admin.health(responder)
        if request.path == "/ready":
            return admin.ready(self.roster, self.server.draining, responder, await self.siblings.states())
        return admin.metrics_page(self.metrics, responder, await self.siblings.states())

    def reload(self) -> None:
        """Read the files again: engines, API keys, the certificate. A bad certificate leaves the old one in use."""
        self.discovery.reload()
        self.tenants.refresh()
        if self._certificate is not None:
            try:
                self.settings.tls.load(self._certificate)
            except UsageError as error:
                log.warning("%s", error)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self.store.expire()
            self.roster.sweep()
            self.tenants.refresh()


def given(pools: Pools) -> Plan:
    """The engines and sources that options name."""
    named = ((Role.PREFILL, pools.prefill), (Role.DECODE, pools.decode))
    return Plan(tuple(Member(role, target) for role, targets in named for target in targets), pools.sources)


def _new_engine(clock: Callable[[], float], role: Role, target: Target) -> Engine:
    return Engine(role, target.origin, Breaker(clock), target.kv_host)
