"""The measurement: fake engines, contenders, and rounds of load that go round all of them."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from neuron_pd.bench.proxy.contenders import OURS, Contender, Pinned, Ports, contender
from neuron_pd.bench.proxy.figures import ENGINE, Burst, Measured, Round, notes, ratios
from neuron_pd.bench.proxy.peers import Say, Unavailable
from neuron_pd.errors import EngineStartError, UsageError

TRANSCRIPT = f"{OURS}, no id sent"
SPARE_SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. `clients` ask again and again for `seconds` in each of `rounds`; `burst` arrive at once."""

    peers: tuple[str, ...] = ()
    rounds: int = 5
    seconds: float = 5.0
    clients: int = 32
    chunks: int = 64
    burst: int = 160
    bursts: int = 3


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core each part runs on. The proxies share one, and are never under load together."""

    proxies: int
    engines: int
    client: int

    @classmethod
    def share(cls, usable: Sequence[int]) -> "Cores":
        """UsageError with fewer than two cores: there every part would slow the others."""
        if len(usable) < 2:
            raise UsageError("two cores are needed, one for the proxy and one for engines and client")
        return cls(usable[0], usable[1], usable[2] if len(usable) > 2 else usable[1])


class Bench:
    """`with Bench(plan, say) as bench:` runs engines and contenders; `measure` loads them in turn."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self.plan, self._say = plan, say
        self.cores = Cores.share(sorted(os.sched_getaffinity(0)))
        self._stack = ExitStack()
        self._running: dict[str, tuple[Pinned, int]] = {}
        self.measured = {name: Measured(name) for name in (ENGINE, OURS, TRANSCRIPT, *plan.peers)}

    def __enter__(self) -> "Bench":
        argv = (sys.executable, "-m", "neuron_pd.bench.proxy.engine", "--chunks", str(self.plan.chunks))
        self._engine = self._stack.enter_context(Pinned(argv, self.cores.engines, talks=True))
        line = self._engine.read_line()
        if not line:
            raise EngineStartError(f"the fake engines did not start: {self._engine.last_words}")
        self._ports = Ports(**orjson.loads(line))
        self._running[ENGINE] = (self._engine, self._ports.decode)
        for name in (OURS, *self.plan.peers):
            self._begin(name)
        if OURS in self._running:
            self._running[TRANSCRIPT] = self._running[OURS]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self, name: str) -> None:
        try:
            found = contender(name, self._ports, self._say)
            with ExitStack() as trying:
                process = trying.enter_context(Pinned(found.argv, self.cores.proxies))
                process.listening(found.port)
                self._try_once(found)
                self._stack.callback(trying.pop_all().close)
            self._running[name] = (process, found.port)
        except Unavailable as error:
            self.measured[name].reason = str(error)
            self._say(f"{name}: {error}")

    def _try_once(self, found: Contender) -> None:
        """A proxy that listens may not serve yet, as while it looks for its engines."""
        until = time.monotonic() + 30.0
        while True:
            seen = self._load(found.port, "--clients", "1", "--once")
            if seen["requests"] == 1:
                return
            if time.monotonic() > until:
                raise Unavailable("it listens, but gives no whole answer")
            time.sleep(0.5)

    def measure(self) -> None:
        """All rounds: in each, every contender once, and another one first than in the round before."""
        names = list(self._running)
        for number in range(self.plan.rounds):
            self._say(f"round {number + 1} of {self.plan.rounds}")
            for name in (*names[number % len(names) :], *names[: number % len(names)]):
                self.measured[name].rounds.append(self._round(name))
        for number in range(self.plan.bursts):
            self._say(f"{self.plan.burst} clients at once, {number + 1} of {self.plan.bursts}")
            for name in names:
                self.measured[name].bursts.append(self._burst(name))

    def _round(self, name: str) -> Round:
        seen = self._loaded(name, "--clients", str(self.plan.clients), "--seconds", str(self.plan.seconds))
        return Round(seen["requests"], seen["failed"], seen["seconds"], *seen["cpu"])

    def _burst(self, name: str) -> Burst:
        seen = self._loaded(name, "--clients", str(self.plan.burst), "--once")
        return Burst(seen["first_bytes"], seen["requests"] * self.plan.chunks, seen["cpu"][0], seen["failed"])

    def _loaded(self, name: str, *options: str) -> dict[str, Any]:
        """What a load on a contender saw, its `cpu` seconds those of contender, engines and client."""
        process, port = self._running[name]
        identity = "transcript" if name == TRANSCRIPT else "id"
        return self._load(port, "--identity", identity, *options, watched=(process, self._engine))

    def _load(self, port: int, *options: str, watched: Sequence[Pinned] = ()) -> dict[str, Any]:
        argv = [sys.executable, "-m", "neuron_pd.bench.proxy.load", str(port), "--chunks", str(self.plan.chunks)]
        argv += [*options, *(f"--watch={one.process.pid}" for one in watched)]
        with Pinned(argv, self.cores.client, talks=True) as client:
            try:
                out, _ = client.process.communicate(timeout=self.plan.seconds + SPARE_SECONDS)
            except subprocess.TimeoutExpired:
                unknown = [0.0] * (len(watched) + 1)
                return {"requests": 0, "failed": 1, "seconds": 1.0, "cpu": unknown, "first_bytes": []}
            if client.process.returncode:
                raise EngineStartError(f"the load client failed: {client.last_words}")
        seen: dict[str, Any] = orjson.loads(out)
        return seen

    def report(self) -> dict[str, Any]:
        """Rows, ratios and notes as JSON."""
        rows = [one.row(self.cores.engines == self.cores.client) for one in self.measured.values()]
        times = {name: ratios(self.measured[OURS], self.measured[name]) for name in self.plan.peers}
        return {"rows": rows, "times": times, "notes": notes(rows), "plan": asdict(self.plan)}
