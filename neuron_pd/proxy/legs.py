"""The two legs of a turn, what else engines are asked for it, and the ways they fail."""

import logging
from collections.abc import Sequence
from random import getrandbits
from typing import Any, NamedTuple

from neuron_pd.core import control
from neuron_pd.core.transfer import TURN, TurnReport
from neuron_pd.proxy.bodies import MAX_ANSWER, json_object
from neuron_pd.proxy.engines import Engine
from neuron_pd.proxy.errors import JSON, Refusal
from neuron_pd.proxy.http import Client, Header, Request, Response, Timeouts, UpstreamError
from neuron_pd.proxy.http.message import HOP_BY_HOP, forwardable, header_lines
from neuron_pd.proxy.metrics import Metrics
from neuron_pd.proxy.probe import key_headers
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
PASSED_ON = (408, 429, 504)  # about load and time: the client decides when to come back


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

    def __init__(self, client: Client, phases: Phases, metrics: Metrics, access: Access) -> None:
        self.client = client
        self.metrics = metrics
        self._key = key_headers(access.engine_key)
        # Keys that the proxy checked, or replaces, stop here.
        self._stays = NOT_FORWARDED | CLIENT_KEYS if access.keys or access.engine_key else NOT_FORWARDED
        self._leg_stays = self._stays | {b"content-type"}
        self._own = header_lines([*self._key, JSON])
        self._asking = Timeouts(phases.acquire, phases.acquire, phases.acquire)
        self._prefill = Timeouts(phases.prefill, phases.prefill, phases.prefill)
        self._decode = Timeouts(phases.first_byte, phases.idle)

    def headers(self, request: Request) -> list[Header]:
        """What an engine is told of the client's headers."""
        return [*forwardable(request, self._stays), *self._key]

    def _leg_lines(self, request: Request, extra: Sequence[Header]) -> bytes:
        lines = request.engine_lines
        if lines is None:
            lines = request.engine_lines = header_lines(forwardable(request, self._leg_stays)) + self._own
        return lines + header_lines(extra) if extra else lines

    async def tokenize(self, engine: Engine, body: bytes) -> list[int] | None:
        """What an engine makes of a prompt; None where it does not say. UpstreamError when it does not answer."""
        headers = [*self._key, JSON]
        answer = await self.client.ask(engine.origin, b"POST", b"/tokenize", headers, body, self._asking, MAX_ANSWER)
        tokens = json_object(answer.body).get("tokens")
        return tokens if answer.status == 200 and isinstance(tokens, list) else None

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
        answer = await self.client.ask(
            engine.origin, b"GET", b"/v1/models", self._key, timeouts=self._asking, limit=MAX_ANSWER
        )
        listed = json_object(answer.body).get("data")
        return [str(model["id"]) for model in listed or () if isinstance(model, dict) and "id" in model]

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


def unavailable(leg: str, error: UpstreamError) -> Refusal:
    """What the client is told of a transport failure: the leg and the kind, never an address."""
    if type(error).__name__ == "TimedOut":
        return Refusal(504, f"the {leg} engine did not answer in time", f"{leg}_timeout")
    return Refusal(503, f"the {leg} engine is not available", f"{leg}_unavailable", ((b"retry-after", b"1"),))


def _prefilled(engine: Engine, answer: bytes) -> Prefilled:
    params = json_object(answer).get("kv_transfer_params")
    if not isinstance(params, dict) or not params:
        return Prefilled(engine, None, None)
    report = params.get(TURN)
    return Prefilled(
        engine, engine.reachable(params), TurnReport.from_json(report) if isinstance(report, dict) else None
    )
