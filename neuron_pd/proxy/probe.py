"""Watching the engines: are they alive, and are they what they were said to be."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import orjson

from neuron_pd.core import control, fit
from neuron_pd.core.fit import Problem
from neuron_pd.proxy.engines import Engine, Engines, Role
from neuron_pd.proxy.http import Answer, Client, ConnectFailed, Header, TimedOut, Timeouts, UpstreamError
from neuron_pd.proxy.settings import Watch
from neuron_pd.proxy.ways import CANNOT_PREFILL, Direct

log = logging.getLogger("neuron_pd.proxy")

MAX_INFO_BYTES = 64 * 1024
SLOW_MISSES = 3  # checks in a row that a busy engine may be too slow for
AS_PREFILL = "start it with --kv-transfer-config and kv_role kv_producer, as `neuron-pd launch --role prefill` does"


class Look(NamedTuple):
    """What one look at an engine found."""

    alive: bool
    problems: list[Problem]


class Probe:
    """Checks every engine from time to time: `GET /health`, and the control path's `info`."""

    def __init__(
        self,
        engines: Engines,
        client: Client,
        token: str | None,
        watch: Watch,
        engine_key: str | None = None,
        direct: Direct = Direct.OFF,
        conversation_ttl: float = 0.0,
    ) -> None:
        self._direct = direct
        self._conversation_ttl = conversation_ttl
        self._engines = engines
        self._client = client
        self._token = token
        self._headers = control_headers(token, engine_key)
        self._interval = watch.interval
        self._timeouts = Timeouts(watch.timeout, watch.timeout, watch.timeout)
        self._misses: dict[Engine, int] = {}
        self._said: dict[Engine, tuple[str, ...]] = {}
        self._soon = asyncio.Event()

    def soon(self) -> None:
        """An engine joined: look now."""
        self._soon.set()

    async def run(self) -> None:
        """Check for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._soon.wait(), self._interval)
            self._soon.clear()
            await self.once()

    async def once(self) -> None:
        """Check every engine once, side by side, then whether they fit each other."""
        every = self._engines.every
        looks = await asyncio.gather(*(self._look(engine) for engine in every))
        found = {engine: look.problems for engine, look in zip(every, looks, strict=True)}
        for engine, misfits in _compare(every):
            found[engine] += misfits
        for engine, look in zip(every, looks, strict=True):
            engine.diagnosed(found[engine])
            if look.alive and not engine.alive:
                engine.breaker.succeeded()
            engine.alive = look.alive
            self._say(engine)
        self._misses = {engine: count for engine, count in self._misses.items() if engine in found}
        self._said = {engine: said for engine, said in self._said.items() if engine in found}

    async def _look(self, engine: Engine) -> Look:
        try:
            answer = await self._get(engine, b"/health")
        except UpstreamError as error:
            return self._missed(engine, error)
        self._misses.pop(engine, None)
        if answer.status != 200:
            what = f"GET /health answers {answer.status}"
            return Look(False, [Problem(what, "see the engine's log", fatal=True)])
        try:
            return Look(True, list(self._read_info(engine, await self._get(engine, control.INFO.encode()))))
        except UpstreamError as error:
            return Look(True, [Problem(f"the control path gives no answer: {error}", "see the engine's log")])

    def _missed(self, engine: Engine, error: UpstreamError) -> Look:
        """No answer: down at once when it cannot be connected to, but only busy while it is merely slow."""
        misses = self._misses[engine] = self._misses.get(engine, 0) + 1
        late = isinstance(error, TimedOut) or (isinstance(error, ConnectFailed) and not error.refused)
        slow = late and bool(engine.alive) and misses < SLOW_MISSES
        if not slow:
            engine.info = None
        return Look(slow, [Problem(str(error), f"start it, or correct --{engine.role}", fatal=not slow)])

    async def _get(self, engine: Engine, path: bytes) -> Answer:
        return await self._client.ask(
            engine.origin, b"GET", path, self._headers, timeouts=self._timeouts, limit=MAX_INFO_BYTES
        )

    def _read_info(self, engine: Engine, answer: Answer) -> Iterator[Problem]:
        engine.info = None
        if engine.without_params:
            yield Problem("its prefills carry no kv_transfer_params: D computes every prompt again", AS_PREFILL)
        if answer.status in (401, 403):
            yield fit.refused(self._token)
        elif answer.status != 200:
            yield fit.no_connector(answer.status)
        else:
            try:
                said = orjson.loads(answer.body)
                engine.info = control.EngineInfo.from_json(said)
                engine.ranks = tuple(said.get("engine_ids", ()))
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                yield fit.other_protocol(error)
                return
            yield from fit.alone(engine.info, engine.role)
            if engine.role is Role.DECODE:
                yield from self._as_decode(engine.info)

    def _as_decode(self, info: control.EngineInfo) -> Iterator[Problem]:
        """What does not fit this proxy's own settings."""
        if self._direct is not Direct.OFF and info.accelerator in CANNOT_PREFILL:
            what = f"a decode engine on {info.accelerator} does not prefill well: it serves no turns alone"
            yield Problem(what, "leave --direct off")
        yield from fit.outlived(info, self._conversation_ttl)

    def _say(self, engine: Engine) -> None:
        """Log an engine's state when it changes."""
        now = tuple(f"{problem.what}; {problem.change}" for problem in engine.problems)
        if now != self._said.get(engine):
            for line in now or ("ready",):
                log.log(logging.WARNING if now else logging.INFO, "%s %s: %s", engine.role, engine.url, line)
            self._said[engine] = now


def control_headers(token: str | None, engine_key: str | None = None) -> list[Header]:
    """What an engine wants to see: the control token; where it has none, its own API key."""
    headers = [(control.TOKEN_HEADER.encode(), token.encode())] if token else []
    return [*headers, *key_headers(engine_key)]


def key_headers(engine_key: str | None) -> list[Header]:
    return [(b"authorization", b"Bearer " + engine_key.encode())] if engine_key else []


def usable_pair(engines: Engines) -> bool:
    """Whether at least one P and one D can serve turns together."""
    return all(any(engine.usable for engine in pool) for pool in (engines.prefill, engines.decode))


def _compare(every: Sequence[Engine]) -> Iterator[tuple[Engine, list[Problem]]]:
    """What does not fit between each engine and the first P that says what it is."""
    reference = next((one for one in every if one.role is Role.PREFILL and one.info is not None and not one.left), None)
    if reference is None or reference.info is None:
        return
    for engine in every:
        if engine is not reference and engine.info is not None:
            yield engine, list(fit.together(engine.info, reference.info, reference.url))
