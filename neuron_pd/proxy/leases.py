"""Leases on what D still holds: asked for, prolonged while P works, given back unread; on the control path."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import orjson

from neuron_pd.core import control
from neuron_pd.core.control import EngineInfo
from neuron_pd.proxy.bodies import MAX_ANSWER, json_object
from neuron_pd.proxy.engines import Engine
from neuron_pd.proxy.errors import JSON
from neuron_pd.proxy.http import Client, Header, Timeouts, UpstreamError
from neuron_pd.proxy.metrics import Metrics
from neuron_pd.proxy.probe import control_headers

log = logging.getLogger("neuron_pd.proxy")

NOTHING = nullcontext()


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


class Leases:
    """Asks engines for leases. A question has `seconds` to be answered; `token` and `key` open the control path."""

    def __init__(self, client: Client, seconds: float, token: str | None, metrics: Metrics, key: str | None) -> None:
        self._client = client
        self._metrics = metrics
        self._headers = [*control_headers(token, key), JSON]
        self._timeouts = Timeouts(seconds, seconds, seconds)
        self._background: set[asyncio.Task[None]] = set()

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

    async def renew(self, lease: Lease) -> str | None:
        """Prolong a lease; None, or why that cannot be: it has ended, or D does not answer."""
        try:
            status, answer = await self._call(lease.engine, control.RENEW, {"lease": lease.id})
        except UpstreamError:
            failure = "renew_failed"
        else:
            failure = "" if status == 200 else str(answer.get("reason") or "renew_failed")
        self._metrics.renewals.add(failure or "renewed")
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

    def release(self, lease: Lease) -> None:
        """Give an unread lease back, without waiting for it; one of an engine that takes none ends by itself."""
        if lease.engine.info is not None:
            self._later(self._give_back(lease.engine, {"lease": lease.id}))

    def forget(self, engine: Engine, handle: str) -> None:
        """Let D forget a finished turn, and what it keeps for it, without waiting for it."""
        if engine.info is not None:
            self._later(self._give_back(engine, {"handle": handle}))

    def strand(self, engine: Engine, params: Mapping[str, Any] | None) -> None:
        """No D took what P prefilled: tell P, where it listens, so that its blocks do not wait for a deadline."""
        if params is None:
            return
        self._metrics.unread.add("decode_not_reached")
        if engine.info is not None:
            self.release(Lease(engine, dict(params)))

    def _later(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(call)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def settle(self, seconds: float) -> None:
        """Let releases under way end."""
        if self._background:
            await asyncio.wait(self._background, timeout=seconds)

    async def _ask(self, engine: Engine, handle: str, extra: Sequence[Header]) -> Lease | str:
        try:
            status, answer = await self._call(engine, control.ACQUIRE, {"handle": handle}, extra)
        except UpstreamError as error:
            log.warning("acquire on %s failed: %s", engine.url, error)
            self._metrics.failures.add("acquire", type(error).__name__)
            return "acquire_failed"
        params = answer.get("kv_transfer_params")
        if status == 200 and isinstance(params, dict):
            return Lease(engine, engine.reachable(params))
        if status == 404 and isinstance(answer.get("reason"), str):
            return str(answer["reason"])
        log.warning("acquire on %s answered %d", engine.url, status)
        self._metrics.failures.add("acquire", f"http_{status}")
        return "acquire_failed"

    async def _give_back(self, engine: Engine, what: Mapping[str, str]) -> None:
        try:
            status, _ = await self._call(engine, control.RELEASE, what)
        except UpstreamError as error:
            log.info("release on %s failed, the lease ends by itself: %s", engine.url, error)
            self._metrics.releases.add("failed")
            return
        self._metrics.releases.add("released" if status == 200 else "failed")

    async def _call(
        self, engine: Engine, path: str, body: Mapping[str, str], extra: Sequence[Header] = ()
    ) -> tuple[int, Mapping[str, Any]]:
        headers = [*self._headers, *extra] if extra else self._headers
        answer = await self._client.ask(
            engine.origin, b"POST", path.encode(), headers, orjson.dumps(body), self._timeouts, MAX_ANSWER
        )
        return answer.status, json_object(answer.body)

    def _unwanted(self, asking: "asyncio.Future[Lease | str]") -> None:
        if not asking.cancelled() and asking.exception() is None and isinstance(lease := asking.result(), Lease):
            self.release(lease)
