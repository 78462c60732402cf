"""Processes in simulated time: generators that say how long they wait, or on which line."""

import heapq
from collections import deque
from collections.abc import Generator
from itertools import count
from typing import TypeAlias

Process: TypeAlias = "Generator[float | Line, None, None]"


class Line(deque[Process]):
    """Where processes wait in order until someone wakes them."""


class Kernel:
    """Runs processes. One that yields seconds goes on that much later; one that yields a `Line` waits at its end.

    Events at the same time happen in the order in which they were scheduled, so a run is a function of its seed.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._agenda: list[tuple[float, int, Process]] = []

    def start(self, process: Process, delay: float = 0.0) -> None:
        heapq.heappush(self._agenda, (self.now + delay, next(self._order), process))

    def wake(self, line: Line) -> None:
        """Let the first process of a line go on, now."""
        self.start(line.popleft())

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._agenda:
            self.now, _, process = heapq.heappop(self._agenda)
            wanted = next(process, None)
            if isinstance(wanted, Line):
                wanted.append(process)
            elif wanted is not None:
                self.start(process, wanted)
