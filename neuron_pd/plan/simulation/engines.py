"""The engines of a simulation: P computes one turn after another, D admits turns into its pool and streams replies."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from neuron_pd.plan.calibration import Calibration
from neuron_pd.plan.simulation.kernel import Kernel, Line, Process
from neuron_pd.plan.simulation.pool import Pool


class PrefillEngine:
    """First come, first served. `cache` is its own prefix cache, in blocks."""

    def __init__(self, kernel: Kernel, cache_blocks: int) -> None:
        self.cache = Pool(cache_blocks)
        self.tokens_in_flight = 0
        self.busy_seconds = 0.0
        self._kernel = kernel
        self._busy = False
        self._line = Line()

    def compute(self, seconds: float) -> Process:
        """Wait for one's turn and compute."""
        if self._busy:
            yield self._line
        self._busy = True
        yield seconds
        self.busy_seconds += seconds
        # The engine passes from hand to hand while others wait: it is never free in between.
        if self._line:
            self._kernel.wake(self._line)
        else:
            self._busy = False


@dataclass(slots=True)
class Admission:
    """A sequence of `blocks` that is to run on D; `held` of its leading blocks were there when it was let in."""

    conversation: int
    blocks: int
    held: int = 0


class DecodeEngine:
    """Admits turns in order, as its blocks and `max_num_seqs` allow; a turn's whole sequence is reserved.

    `pin_blocked` is how long the first in line has waited, all in all, only because blocks are pinned.
    """

    def __init__(self, kernel: Kernel, by: Calibration, blocks: int, max_num_seqs: int, pin_budget: float) -> None:
        self.pool = Pool(blocks)
        self.running = 0
        self._kernel = kernel
        self._by = by
        self._max_num_seqs = max_num_seqs
        self._pin_limit = int(pin_budget * blocks)
        self._waiting: deque[Admission] = deque()
        self._line = Line()
        self._stalled = 0.0
        self._pin_blocked = 0.0
        self._blocked_since: float | None = None
        self._pin_number = 0
        self._pins: dict[int, int] = {}
        self._reading: set[int] = set()

    @property
    def load(self) -> int:
        return self.running + len(self._waiting)

    @property
    def pin_blocked(self) -> float:
        since = self._blocked_since
        return self._pin_blocked + (0.0 if since is None else self._kernel.now - since)

    def enter(self, admission: Admission) -> Process:
        """Wait until the sequence runs here."""
        self._waiting.append(admission)
        if len(self._waiting) > 1 or not self._fits(admission.blocks):
            self._look_at_pins()
            yield self._line
        else:
            self._admit()

    def reply(self, context: int, tokens: int) -> Process:
        """Stream a reply: at the pace of the number of replies when it begins, and later by what stalls the engine."""
        seen = self._stalled
        yield tokens * self._by.decode.seconds(context, self.running - 1)
        while (extra := self._stalled - seen) > 0:
            seen += extra
            yield extra

    def prefill(self, seconds: float) -> Process:
        """Compute a suffix here: the replies that are streaming stand still."""
        self._stalled += seconds
        yield seconds

    def leave(self, conversation: int, blocks: int, keep: int, pin_for: float | None) -> None:
        """The sequence has ended; its first `keep` blocks stay, pinned for `pin_for` seconds if that is given.

        Where pins would take more than their budget the oldest are given up first.
        """
        self.running -= 1
        self.pool.give(conversation, blocks, keep)
        if pin_for is not None:
            self._pin(conversation, pin_for)
        self._admit_waiting()

    @contextmanager
    def reading(self, conversation: int) -> Iterator[None]:
        """What is cached of a conversation is held while P reads it; afterwards no pin of it is left."""
        self._reading.add(conversation)
        self._pins.pop(conversation, None)
        self.pool.pin(conversation)
        yield
        self._reading.remove(conversation)
        self.pool.unpin(conversation)
        self._admit_waiting()

    def _pin(self, conversation: int, seconds: float) -> None:
        blocks = self.pool.held(conversation)
        while self.pool.pinned + blocks > self._pin_limit and self._pins:
            self._unpin(next(iter(self._pins)))
        if self.pool.pinned + blocks > self._pin_limit:
            return
        self.pool.pin(conversation)
        self._pin_number += 1
        self._pins[conversation] = self._pin_number
        self._kernel.start(self._expire(conversation, self._pin_number), seconds)

    def _expire(self, conversation: int, number: int) -> Process:
        if self._pins.get(conversation) == number:
            self._unpin(conversation)
            self._admit_waiting()
        yield from ()

    def _unpin(self, conversation: int) -> None:
        del self._pins[conversation]
        self.pool.unpin(conversation)

    def _fits(self, blocks: int) -> bool:
        return self.running < self._max_num_seqs and self.pool.can_take(blocks)

    def _admit(self) -> None:
        admission = self._waiting.popleft()
        admission.held = self.pool.held(admission.conversation)
        self.pool.take(admission.conversation, admission.blocks)
        self.running += 1

    def _admit_waiting(self) -> None:
        while self._waiting and self._fits(self._waiting[0].blocks):
            self._admit()
            self._kernel.wake(self._line)
        self._look_at_pins()

    def _look_at_pins(self) -> None:
        """Whether the first in line waits for pinned blocks alone, from now on."""
        self._pin_blocked = self.pin_blocked
        by_pins = bool(self._waiting) and self.running < self._max_num_seqs
        by_pins = by_pins and self.pool.running + self._waiting[0].blocks <= self.pool.total
        self._blocked_since = self._kernel.now if by_pins else None
