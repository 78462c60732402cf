"""The roster: what every source says, and the engines of the pools made to follow it."""

import logging
from collections.abc import Callable, Iterable

from neuron_pd.errors import UsageError
from neuron_pd.proxy.engines import Engine, Engines, Role, Target
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.pools.source import Member

log = logging.getLogger("neuron_pd.proxy")

ADMIN = "admin"
Named = tuple[Role, Origin]


class Roster:
    """Lets engines join and leave.

    An engine belongs to its pool while any source names it. One that no source names any longer leaves: it gets no new
    turns, those in flight end, and for `linger` seconds, while it lives, what it holds can still be read by P.

    `join`, `leave` and `drain` are an operator's word and go before what sources say.
    """

    def __init__(
        self, engines: Engines, make: Callable[[Role, Target], Engine], clock: Callable[[], float], linger: float
    ) -> None:
        self.engines = engines
        self.problems: dict[str, str] = {}
        self.changed: Callable[[], None] = lambda: None  # called when an engine joined
        self._make = make
        self._clock = clock
        self._linger = linger
        self._said: dict[str, dict[Named, Member]] = {}
        self._barred: set[Named] = set()
        self._drained: set[Named] = set()
        self._left: dict[Engine, float] = {}

    def says(self, source: str, members: Iterable[Member]) -> None:
        """These, and no others, are the members that `source` knows."""
        self.problems.pop(source, None)
        self._said[source] = {(member.role, member.target.origin): member for member in members}
        self._follow()

    def fails(self, source: str, why: str) -> None:
        """`source` could not be read: what it said last still holds."""
        if self.problems.get(source) != why:
            log.warning("%s: %s; its engines stay as they are", source, why)
        self.problems[source] = why

    def forget(self, source: str) -> None:
        """`source` is no longer one."""
        self.problems.pop(source, None)
        self._said.pop(source, None)
        self._follow()

    def join(self, role: Role, target: Target) -> Engine:
        """An operator adds an engine, or takes back that it was removed or drained.

        UsageError when its address is an engine of the other role.
        """
        name = (role, target.origin)
        other = next((one for one in self.engines.every if one.origin == target.origin and one.role is not role), None)
        if other is not None:
            raise UsageError(f"{other.url} is a {other.role} engine{' that is leaving' if other.left else ''}")
        self._barred.discard(name)
        self._drained.discard(name)
        self._said.setdefault(ADMIN, {})[name] = Member(role, target)
        self._follow()
        return self.engines.named(role, target.origin.url)

    def leave(self, engine: Engine) -> None:
        """An operator removes an engine, whoever names it."""
        name = (engine.role, engine.origin)
        self._said.get(ADMIN, {}).pop(name, None)
        self._barred.add(name)
        self._follow()

    def drain(self, engine: Engine, on: bool = True) -> None:
        """An operator stops (or resumes) new turns on an engine that stays."""
        (self._drained.add if on else self._drained.discard)((engine.role, engine.origin))
        self._follow()

    def sweep(self) -> None:
        """Drop the engines that left, have nothing in flight, and whose holdings are gone or had their time."""
        now = self._clock()
        for engine, left in list(self._left.items()):
            if engine.requests == 0 and (not engine.answers or now - left >= self._linger):
                del self._left[engine]
                self.engines.drop(engine)
                log.info("%s %s is gone", engine.role, engine.url)

    def _follow(self) -> None:
        wanted = self._wanted()
        joined = [self._enter(member) for member in wanted.values()]
        for engine in self.engines.every:
            if (engine.role, engine.origin) not in wanted and not engine.left:
                engine.left = True
                self._left[engine] = self._clock()
                log.info("%s %s leaves: no new turns", engine.role, engine.url)
        if any(joined):
            self.changed()

    def _wanted(self) -> dict[Named, Member]:
        """Every member that counts. Of one address under two roles, the first that was said."""
        wanted: dict[Named, Member] = {}
        roles: dict[Origin, Role] = {}
        for source, said in self._said.items():
            for name, member in said.items():
                if name in self._barred:
                    continue
                role, origin = name
                if roles.setdefault(origin, role) is not role:
                    self.problems[source] = f"{origin.url} is {roles[origin]} already, and cannot be {role} too"
                    continue
                draining = member.draining or name in self._drained or (name in wanted and wanted[name].draining)
                wanted[name] = member._replace(draining=draining)
        return wanted

    def _enter(self, member: Member) -> bool:
        """Bring one engine in line with what is said of it; whether it joined."""
        engine = self.engines.find(member.role, member.target.origin.url)
        joined = engine is None or engine.left
        if engine is None:
            engine = self._make(member.role, member.target)
            self.engines.add(engine)
        self._left.pop(engine, None)
        engine.left = False
        engine.kv_host = member.target.kv_host
        if engine.draining != member.draining:
            log.info("%s %s %s", engine.role, engine.url, "drains" if member.draining else "takes turns again")
        engine.draining = member.draining
        if joined:
            log.info("%s %s joins", engine.role, engine.url)
        return joined
