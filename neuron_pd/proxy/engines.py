"""The engines behind the proxy: two pools, and who takes the next request."""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from neuron_pd.core.control import EngineInfo
from neuron_pd.proxy.breaker import Breaker
from neuron_pd.proxy.errors import not_ready
from neuron_pd.proxy.http import ConnectFailed, Origin, StaleConnection

NOWHERE = frozenset(("", "0.0.0.0", "::", "*", "localhost"))


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True)
class Problem:
    """Something wrong with an engine: what, and the setting to change. A `fatal` one keeps it from being used."""

    what: str
    change: str
    fatal: bool = False


@dataclass(slots=True, eq=False)
class Engine:
    """One engine. `load` is what it has in flight: prompt tokens (about) on P, requests on D.

    `alive` is the last health check's answer, None before the first. `info` is None for an engine without neuron-pd's
    connector. `fit`: it can work with the other pool. `kv_host` takes the place of an address that only means something
    on the engine's own machine.
    """

    role: Role
    origin: Origin
    breaker: Breaker
    kv_host: str
    alive: bool | None = None
    info: EngineInfo | None = None
    fit: bool = True
    problems: list[Problem] = field(default_factory=list)
    load: int = 0
    requests: int = 0
    served: int = 0
    url: str = field(init=False)  # one string for all that remember this engine

    def __post_init__(self) -> None:
        self.url = self.origin.url

    @property
    def usable(self) -> bool:
        return self.alive is not False and self.fit and self.breaker.allows

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


class Engines:
    """The pools. P is chosen by tokens in flight, D by the conversation, else by load."""

    def __init__(self, prefill: Iterable[Engine], decode: Iterable[Engine]) -> None:
        self.prefill = list(prefill)
        self.decode = list(decode)
        self._by_url = {engine.url: engine for engine in self.decode}

    @property
    def every(self) -> list[Engine]:
        return [*self.prefill, *self.decode]

    def for_prefill(self, avoid: Sequence[Engine] = ()) -> Engine:
        """The P with the fewest tokens in flight; Refusal 503 when none is usable. `avoid` are taken last."""
        return _least_loaded(self.prefill, avoid, Role.PREFILL)

    def for_decode(self, url: str | None = None, avoid: Sequence[Engine] = ()) -> Engine:
        """The D at `url` while it is usable, else the one with the fewest requests; Refusal 503 when none is."""
        known = self._by_url.get(url) if url is not None else None
        if known is not None and known.usable and known not in avoid:
            return known
        return _least_loaded(self.decode, avoid, Role.DECODE)


def _least_loaded(pool: Sequence[Engine], avoid: Sequence[Engine], role: Role) -> Engine:
    best: Engine | None = None
    for engine in pool:
        if engine in avoid or not engine.usable:
            continue
        if best is None or (engine.load, engine.served) < (best.load, best.served):
            best = engine
    if best is None:
        raise not_ready(f"no {role} engine is ready: the proxy's /ready says why")
    return best


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
