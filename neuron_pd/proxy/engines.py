"""The engines behind the proxy: two pools that engines join and leave, and who takes the next request."""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from neuron_pd.core.control import EngineInfo
from neuron_pd.core.fit import Problem
from neuron_pd.proxy.breaker import Breaker
from neuron_pd.proxy.errors import not_ready
from neuron_pd.proxy.http import ConnectFailed, Origin, StaleConnection
from neuron_pd.proxy.ways import Meters

NOWHERE = frozenset(("", "0.0.0.0", "::", "*", "localhost"))


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Target:
    """An engine as given: where it listens, and the host under which the others reach its KV side channel."""

    origin: Origin
    kv_host: str


@dataclass(slots=True, eq=False)
class Engine:
    """One engine. `load` is what it has in flight: prompt tokens to compute (about) on P, requests on D.

    `alive` is the last health check's answer, None before the first: it is not used until it was looked at. `info` is
    None for an engine without neuron-pd's connector; `ranks` are the engine ids behind its API server, one a
    data-parallel rank. `fit`: it can work with the other pool. `kv_host` takes the place of an address that only means
    something on the engine's own machine.

    `without_params`: its last prefill said nothing about blocks. A `draining` engine gets no new turns, and one that
    has `left` its pool neither; what it holds can still be read.
    """

    role: Role
    origin: Origin
    breaker: Breaker
    kv_host: str
    alive: bool | None = None
    info: EngineInfo | None = None
    ranks: Sequence[str] = ()
    fit: bool = True
    draining: bool = False
    left: bool = False
    without_params: bool = False
    problems: list[Problem] = field(default_factory=list)
    load: int = 0
    requests: int = 0
    served: int = 0
    meters: Meters = field(default_factory=Meters)
    url: str = field(init=False)  # one string for all that remember this engine

    def __post_init__(self) -> None:
        self.url = self.origin.url

    @property
    def answers(self) -> bool:
        """Whether it may be asked for what it holds."""
        return bool(self.alive) and self.breaker.allows

    @property
    def usable(self) -> bool:
        """Whether it may be given new turns."""
        return bool(self.alive and self.fit and not self.draining and not self.left) and self.breaker.allows

    @property
    def offers(self) -> bool:
        """Whether this D's answers may name the blocks that it keeps: in pin mode, and with vLLM's own connector."""
        return self.info is None or self.info.retention == "pin"

    @property
    def reads_back(self) -> bool:
        """Whether this engine takes part in reuse: D records and leases, P verifies before it reads."""
        return self.info is not None and self.info.bidirectional

    def diagnosed(self, problems: list[Problem]) -> None:
        """Take over what a round of checks found."""
        self.problems = problems
        self.fit = not any(problem.fatal for problem in problems)

    def begin(self, weight: int) -> None:
        self.load += weight
        self.requests += 1
        self.served += 1
        self.breaker.sent()

    def end(self, weight: int) -> None:
        self.load -= weight
        self.requests -= 1

    def failed(self, error: Exception) -> None:
        """Count a transport failure. A stale connection says nothing about the engine."""
        if isinstance(error, ConnectFailed) and error.refused:
            self.breaker.trip()
        elif not isinstance(error, StaleConnection):
            self.breaker.failed()

    def reachable(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Transfer parameters with a host that the other engine can reach; the port stays."""
        host = params.get("remote_host")
        if isinstance(host, str) and _means_itself(host) and not _means_itself(self.origin.host):
            return {**params, "remote_host": self.kv_host}
        return dict(params)


@dataclass(frozen=True, slots=True)
class Balance:
    """When a conversation leaves its D for the one with the fewest requests: its own has more than `absolute` requests
    more, and more than `relative` times as many."""

    absolute: int = 32
    relative: float = 1.5

    def tilted(self, load: int, least: int) -> bool:
        return load - least > self.absolute and load > self.relative * least


class Engines:
    """The pools. P is chosen by tokens in flight and by what it may still hold, D by the conversation, else by load."""

    def __init__(
        self, prefill: Iterable[Engine] = (), decode: Iterable[Engine] = (), balance: Balance | None = None
    ) -> None:
        self.prefill: list[Engine] = []
        self.decode: list[Engine] = []
        self.balance = balance or Balance()
        self._by_name: dict[tuple[Role, str], Engine] = {}
        for engine in (*prefill, *decode):
            self.add(engine)

    @property
    def every(self) -> list[Engine]:
        return [*self.prefill, *self.decode]

    def add(self, engine: Engine) -> None:
        self._by_name[engine.role, engine.url] = engine
        self._pool(engine.role).append(engine)

    def drop(self, engine: Engine) -> None:
        del self._by_name[engine.role, engine.url]
        self._pool(engine.role).remove(engine)

    def named(self, role: Role, url: str) -> Engine:
        """KeyError when there is none."""
        return self._by_name[role, url]

    def find(self, role: Role, url: str) -> Engine | None:
        return self._by_name.get((role, url))

    def holder(self, url: str) -> Engine | None:
        """The D at `url` while what it holds can be read: also when it takes no new turns."""
        engine = self.find(Role.DECODE, url)
        return engine if engine is not None and engine.answers else None

    def for_prefill(self, avoid: Sequence[Engine] = (), last: str = "", saved: int = 0) -> Engine:
        """The P that would be through with this prompt first; Refusal 503 when none is usable.

        Tokens in flight decide; at the P with the URL `last`, `saved` tokens need not be computed. None of `avoid`.
        """
        return _first(self.prefill, avoid, Role.PREFILL, last, saved)

    def for_decode(self, url: str | None = None, avoid: Sequence[Engine] = ()) -> Engine:
        """The D at `url` while it is usable and not overloaded, else the one with the fewest requests.

        Refusal 503 when none is usable. None of `avoid`.
        """
        least = _first(self.decode, avoid, Role.DECODE)
        known = self.find(Role.DECODE, url) if url is not None else None
        if known is None or known is least or not known.usable or known in avoid:
            return least
        return least if self.balance.tilted(known.load, least.load) else known

    def _pool(self, role: Role) -> list[Engine]:
        return self.prefill if role is Role.PREFILL else self.decode


def _first(pool: Sequence[Engine], avoid: Sequence[Engine], role: Role, last: str = "", saved: int = 0) -> Engine:
    if len(pool) == 1 and not avoid and pool[0].usable:
        return pool[0]
    usable = [engine for engine in pool if engine.usable and engine not in avoid]
    if not usable:
        raise not_ready(f"no {role} engine is ready: the proxy's /ready says why")
    return min(usable, key=lambda one: (one.load - saved if one.url == last else one.load, one.served))


@lru_cache(maxsize=1024)
def _means_itself(host: str) -> bool:
    """Whether an address names the machine it is used on: a wildcard or a loopback address."""
    if host.lower() in NOWHERE:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
