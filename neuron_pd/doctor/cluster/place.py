"""A cluster as it answers: the proxy, and each engine behind it with what it says of itself."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from neuron_pd.core.control import INFO, TOKEN_HEADER, EngineInfo
from neuron_pd.core.fit import DECODE, PREFILL
from neuron_pd.doctor.ask import Answer, CannotReach, ask
from neuron_pd.errors import UsageError

AT_ONCE: Final = 16
UNWELL: Final = "GET /health answers"  # how `down` begins where something listens
ROLES: Final = (PREFILL, DECODE)


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. `role` is "" where nobody says it, `down` why /health gives no 200, `skew` its clock ahead of ours in
    seconds. `info` is None with a `status` that says why: of the control path, 200 where it cannot be understood.
    """

    role: str
    url: str
    down: str = ""
    status: int | None = None
    info: EngineInfo | None = None
    ranks: int = 1
    missing: str = ""
    skew: float | None = None
    usable: bool | None = None  # what the proxy says of it

    @property
    def name(self) -> str:
        return f"{self.role or 'engine'} {self.url}"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True, slots=True)
class Keys:
    """What opens doors: the control token of the cluster, a client's key at the proxy, the engines' own key."""

    token: str | None = None
    client: str | None = None
    engine: str | None = None

    def for_engine(self) -> dict[str, str]:
        token = {TOKEN_HEADER: self.token} if self.token else {}
        return token | ({"Authorization": f"Bearer {self.engine}"} if self.engine else {})

    def for_proxy(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.client}"} if self.client else {}


@dataclass(frozen=True, slots=True)
class Cluster:
    """`ready` is the proxy's own /ready, `proxy_down` why there is none."""

    proxy: str | None = None
    proxy_down: str = ""
    ready: Mapping[str, Any] = field(default_factory=dict)
    engines: Sequence[Engine] = ()
    keys: Keys = Keys()
    seconds: float = 10.0
    self_test: bool = True
    self_test_seconds: float = 120.0

    def of(self, role: str) -> list[Engine]:
        return [engine for engine in self.engines if engine.role == role]

    @property
    def longest(self) -> float:
        """Seconds within which every probe has come to an end."""
        return 3 * self.self_test_seconds

    @property
    def known(self) -> list[tuple[Engine, EngineInfo]]:
        """The engines that say what they are."""
        return [(engine, engine.info) for engine in self.engines if engine.info is not None]


def look_at(
    urls: Sequence[str], prefill: Sequence[str] = (), decode: Sequence[str] = (), *, keys: Keys = Keys(), **given: Any
) -> Cluster:
    """Ask the proxy, or the engines, at `urls`, and the engines that are named or that the proxy names.

    UsageError for two proxies: they are looked at one after another.
    """
    cluster = Cluster(keys=keys, **given)
    engines = [Engine(role, url) for role, named in zip(ROLES, (prefill, decode), strict=True) for url in named]
    for url in urls:
        down, said = "", None
        try:
            said = ask(url, "/ready", seconds=cluster.seconds).json()
        except CannotReach as error:
            down = str(error)
        ready = said if isinstance(said, dict) and isinstance(said.get("engines"), list) else {}
        if not down and not ready:
            engines.append(Engine("", url))
            continue
        if cluster.proxy is not None:
            raise UsageError(f"{cluster.proxy} and {url} are not both engines: give one proxy, or engines only")
        cluster = replace(cluster, proxy=url, proxy_down=down, ready=ready)
        engines += [
            Engine(str(one.get("role")), str(one.get("url")), usable=one.get("usable"))
            for one in ready.get("engines", ())
        ]
    unique = {engine.url: engine for engine in reversed(engines)}
    return replace(cluster, engines=_side_by_side(lambda engine: _seen(engine, cluster), reversed(unique.values())))


def _side_by_side(look: Callable[[Engine], Engine], engines: Iterable[Engine]) -> list[Engine]:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(look, engines))


def _seen(engine: Engine, cluster: Cluster) -> Engine:
    """The engine, asked whether it lives and what it is."""
    try:
        health = ask(engine.url, "/health", headers=cluster.keys.for_engine(), seconds=cluster.seconds)
        if health.status != 200:
            return replace(engine, down=f"{UNWELL} {health.status}")
        answer = ask(engine.url, INFO, headers=cluster.keys.for_engine(), seconds=cluster.seconds)
    except CannotReach as error:
        return replace(engine, down=str(error))
    skew = None if answer.date is None else answer.date - time.time()
    return _understood(replace(engine, status=answer.status, skew=skew), answer)


def _understood(engine: Engine, answer: Answer) -> Engine:
    if answer.status != 200:
        return engine
    said = answer.json()
    try:
        info = EngineInfo.from_json(said)
    except (KeyError, TypeError) as error:
        return replace(engine, missing=str(error))
    role = engine.role or (info.role if info.role in ROLES else "")
    return replace(engine, role=role, info=info, ranks=len(said.get("engine_ids") or [0]))
