"""The requests a turn sends: acquire and release on the control path, the prefill leg, and the ways they fail."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from random import getrandbits
from typing import Any, NamedTuple

import orjson

from neuron_pd.core import control
from neuron_pd.core.control import EngineInfo
from neuron_pd.core.transfer import TURN, TurnReport
from neuron_pd.proxy.engines import Engine
from neuron_pd.proxy.errors import Refusal
from neuron_pd.proxy.http import Client, Header, Request, Response, Timeouts, UpstreamError
from neuron_pd.proxy.http.message import HOP_BY_HOP, forwardable, header_lines
from neuron_pd.proxy.metrics import Metrics
from neuron_pd.proxy.probe import control_headers, key_headers
from neuron_pd.proxy.settings import Access, Phases

log = logging.getLogger("neuron_pd.proxy")

# From the client to the engines: not what would make their answers unreadable here, nor what only the proxy may say.
NOT_FORWARDED = frozenset(
    (
        *HOP_BY_HOP,
        b"accept-encoding",
        control.TOKEN_HEADER.encode(),
        b"x-neuron-pd-reuse",
        b"x-neuron-pd-session",
        b"x-data-parallel-rank",
    )
)
CLIENT_KEYS = frozenset((b"authorization", b"x-api-key"))
JSON = (b"content-type", b"application/json")
MAX_ANSWER = 64 * 1024 * 1024
NOTHING = nullcontext()
PASSED_ON = (408, 429, 504)  # about load and time: the client decides when to come back


class Lease(NamedTuple):
    """Blocks that D holds pinned for one read."""

    engine: Engine
    params: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.params.get("remote_request_id", ""))

    @property
    def tokens(self) -> int:
        """How many leading tokens of the conversation's last turn D still has."""
        held = self.params.get("remote_num_tokens")
        return held if isinstance(held, int) else 0


class Prefilled(NamedTuple):
    """P's answer: parameters for D (None from an engine that sends none), and how P served the leg."""

    engine: Engine
    params: dict[str, Any] | None
    report: TurnReport | None


class PrefillFailed(Exception):
    """This P did not do it, and another may: `status` and `body` are its answer, where it gave one."""

    def __init__(self, engine: Engine, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.engine = engine
        self.refusal = refusal

    @property
    def answered(self) -> bool:
        """Whether it gave an answer, if not a good one."""
        return not isinstance(self.__cause__, UpstreamError)


def answer_headers(response: Response) -> list[Header]:
    """What the client is told of the engine's headers."""
    return forwardable(response)


def new_handle(mark: str | None = None) -> str:
    """A name for a turn; it begins with `mark`, where there is one. 128 bits, drawn without a system call."""
    name = f"{getrandbits(128):032x}"
    return name if mark is None else mark + name[len(mark) :]


class Legs:
    """Speaks to engines on behalf of turns."""

    def __init__(
        self, client: Client, phases: Phases, token: str | None, metrics: Metrics, access: Access | None = None
    ) -> None:
        self.client = client
        self.phases = phases
        self.metrics = metrics
        access = access or Access()
        self._key = key_headers(access.engine_key)
        self._control = [*control_headers(token, access.engine_key), JSON]
        # Keys that the proxy checked, or replaces, stop here.
        self._stays = NOT_FORWARDED | CLIENT_KEYS if access.keys or access.engine_key else NOT_FORWARDED
        self._leg_stays = self._stays | {b"content-type"}
        self._own = header_lines([*self._key, JSON])
        self._acquire = Timeouts(phases.acquire, phases.acquire, phases.acquire)
        self._prefill = Timeouts(phases.prefill, phases.prefill, phases.prefill)
        self._decode = Timeouts(phases.first_byte, phases.idle)
        self._background: set[asyncio.Task[None]] = set()

    def headers(self, request: Request) -> list[Header]:
        """What an engine is told of the client's headers."""
        return [*forwardable(request, self._stays), *self._key]

    def _leg_lines(self, request: Request, extra: Sequence[Header]) -> bytes:
        lines = request.engine_lines
        if lines is None:
            lines = request.engine_lines = header_lines(forwardable(request, self._leg_stays)) + self._own
        return lines + header_lines(extra) if extra else lines

    async def acquire(self, engine: Engine, handle: str, extra: Sequence[Header] = ()) -> Lease | str:
        """Ask D for a lease on a handle, with `extra` headers: the lease, or why there is none.

        A client that leaves meanwhile does not cut the question off: a lease that still comes is given back.
        """
        asking = asyncio.ensure_future(self._ask(engine, handle, extra))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(self._unwanted)
            raise

    def release(self, lease: Lease) -> None:
        """Give an unread lease back, without waiting for it; one of an engine that takes none ends by itself."""
        if lease.engine.info is not None:
            self._later(self._give_back(lease.engine, {"lease": lease.id}))

    def forget(self, engine: Engine, handle: str) -> None:
        """Let D forget a finished turn, and what it keeps for it, without waiting for it."""
        if engine.info is not None:
            self._later(self._give_back(engine, {"handle": handle}))

    async def renew(self, lease: Lease) -> str | None:
        """Prolong a lease; None, or why that cannot be: it has ended, or D does not answer."""
        try:
            status, answer = await self._call(lease.engine, control.RENEW, {"lease": lease.id})
        except UpstreamError:
            failure = "renew_failed"
        else:
            failure = "" if status == 200 else str(answer.get("reason") or "renew_failed")
        self.metrics.renewals.add(failure or "renewed")
        return failure or None

    def keeping(self, lease: Lease | None) -> AbstractContextManager[None]:
        """Renew a lease, every third of its time, for as long as it is waited for: P may be busy."""
        return NOTHING if lease is None or lease.engine.info is None else self._renewing(lease, lease.engine.info)

    @contextmanager
    def _renewing(self, lease: Lease, info: EngineInfo) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        third = (info.decoder_kv_blocks_ttl if info.pins else info.read_lease_seconds) / 3
        timer: asyncio.TimerHandle

        def again() -> None:
            nonlocal timer
            self._later(self._renew_once(lease))
            timer = loop.call_later(third, again)

        timer = loop.call_later(third, again)
        try:
            yield
        finally:
            timer.cancel()

    async def _renew_once(self, lease: Lease) -> None:
        await self.renew(lease)

    async def tokenize(self, engine: Engine, body: bytes) -> list[int] | None:
        """What an engine makes of a prompt; None where it does not say. UpstreamError when it does not answer."""
        response = await self.client.request(
            engine.origin, b"POST", b"/tokenize", [*self._key, JSON], body, timeouts=self._acquire
        )
        try:
            tokens = _object(await response.read(MAX_ANSWER)).get("tokens")
        finally:
            response.close()
        return tokens if response.status == 200 and isinstance(tokens, list) else None

    def _later(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(call)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def settle(self, seconds: float) -> None:
        """Let releases under way end."""
        if self._background:
            await asyncio.wait(self._background, timeout=seconds)

    async def prefill(
        self, engine: Engine, request: Request, body: bytes, leased: bool, extra: Sequence[Header] = ()
    ) -> Prefilled:
        """The prefill leg on one P, with `extra` headers.

        Raises Refusal for an answer that the client must see, PrefillFailed where another P may do better. A leg that
        carries a lease is never sent twice: its blocks may be freed by the first reading.
        """
        try:
            response = await self.client.request(
                engine.origin,
                b"POST",
                request.target,
                self._leg_lines(request, extra),
                body,
                timeouts=self._prefill,
                retry_stale=not leased,
            )
            try:
                answer = await response.read(MAX_ANSWER)
            finally:
                response.close()
        except UpstreamError as error:
            self.failed(engine, "prefill", error)
            raise PrefillFailed(engine, unavailable("prefill", error)) from error
        if response.status < 500:
            engine.breaker.succeeded()
        if response.status != 200:
            raise self._not_prefilled(engine, response, answer)
        return _prefilled(engine, answer)

    async def decode(
        self, engine: Engine, request: Request, body: bytes, again: bool, extra: Sequence[Header] = ()
    ) -> Response:
        """The head of D's answer; `again`: the request may be sent once more where its connection was stale."""
        try:
            headers = self._leg_lines(request, extra)
            response = await self.client.request(
                engine.origin, b"POST", request.target, headers, body, self._decode, retry_stale=again
            )
        except UpstreamError as error:
            self.failed(engine, "decode", error)
            raise
        engine.breaker.succeeded()
        return response

    async def models(self, engine: Engine) -> list[str]:
        """The names of what an engine serves. UpstreamError when it does not answer."""
        response = await self.client.request(engine.origin, b"GET", b"/v1/models", self._key, timeouts=self._acquire)
        try:
            listed = _object(await response.read(MAX_ANSWER)).get("data")
        finally:
            response.close()
        return [str(model["id"]) for model in listed or () if isinstance(model, dict) and "id" in model]

    def strand(self, prefilled: Prefilled) -> None:
        """No D took what P prefilled: tell P, where it listens, so that its blocks do not wait for a deadline."""
        if prefilled.params is None:
            return
        self.metrics.unread.add("decode_not_reached")
        if prefilled.engine.info is not None:
            self.release(Lease(prefilled.engine, prefilled.params))

    def failed(self, engine: Engine, leg: str, error: UpstreamError) -> None:
        """Count a transport failure of a leg."""
        engine.failed(error)
        self.metrics.failures.add(leg, type(error).__name__)
        log.warning("%s leg on %s failed: %s", leg, engine.url, error)

    def _not_prefilled(self, engine: Engine, response: Response, answer: bytes) -> Exception:
        headers = tuple(answer_headers(response))
        refusal = Refusal(response.status, f"prefill answered {response.status}", headers=headers, body=answer)
        self.metrics.failures.add("prefill", f"http_{response.status}")
        if response.status < 500 or response.status in PASSED_ON:
            return refusal
        log.warning("prefill leg on %s answered %d", engine.url, response.status)
        return PrefillFailed(engine, refusal)

    async def _ask(self, engine: Engine, handle: str, extra: Sequence[Header]) -> Lease | str:
        try:
            status, answer = await self._call(engine, control.ACQUIRE, {"handle": handle}, extra)
        except UpstreamError as error:
            log.warning("acquire on %s failed: %s", engine.url, error)
            self.metrics.failures.add("acquire", type(error).__name__)
            return "acquire_failed"
        params = answer.get("kv_transfer_params")
        if status == 200 and isinstance(params, dict):
            return Lease(engine, engine.reachable(params))
        if status == 404 and isinstance(answer.get("reason"), str):
            return str(answer["reason"])
        log.warning("acquire on %s answered %d", engine.url, status)
        self.metrics.failures.add("acquire", f"http_{status}")
        return "acquire_failed"

    async def _give_back(self, engine: Engine, what: Mapping[str, str]) -> None:
        try:
            status, _ = await self._call(engine, control.RELEASE, what)
        except UpstreamError as error:
            log.info("release on %s failed, the lease ends by itself: %s", engine.url, error)
            self.metrics.releases.add("failed")
            return
        self.metrics.releases.add("released" if status == 200 else "failed")

    async def _call(
        self, engine: Engine, path: str, body: Mapping[str, str], extra: Sequence[Header] = ()
    ) -> tuple[int, Mapping[str, Any]]:
        headers = [*self._control, *extra] if extra else self._control
        response = await self.client.request(
            engine.origin, b"POST", path.encode(), headers, orjson.dumps(body), timeouts=self._acquire
        )
        try:
            return response.status, _object(await response.read(MAX_ANSWER))
        finally:
            response.close()

    def _unwanted(self, asking: "asyncio.Future[Lease | str]") -> None:
        if not asking.cancelled() and asking.exception() is None and isinstance(lease := asking.result(), Lease):
            self.release(lease)


def unavailable(leg: str, error: UpstreamError) -> Refusal:
    """What the client is told of a transport failure: the leg and the kind, never an address."""
    if type(error).__name__ == "TimedOut":
        return Refusal(504, f"the {leg} engine did not answer in time", f"{leg}_timeout")
    return Refusal(503, f"the {leg} engine is not available", f"{leg}_unavailable", ((b"retry-after", b"1"),))


def _prefilled(engine: Engine, answer: bytes) -> Prefilled:
    params = _object(answer).get("kv_transfer_params")
    if not isinstance(params, dict) or not params:
        return Prefilled(engine, None, None)
    report = params.get(TURN)
    return Prefilled(
        engine, engine.reachable(params), TurnReport.from_json(report) if isinstance(report, dict) else None
    )


def _object(answer: bytes) -> Mapping[str, Any]:
    try:
        parsed = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
