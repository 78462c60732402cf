"""What is simulated: the conversations, the engines, and how they are run."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from neuron_pd.core.decision import DEFAULT_RECOMPUTE_THRESHOLD


class Spread(StrEnum):
    """How first prompts, and pauses, vary around their mean."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"

    def draw(self, mean: float, source: Random) -> float:
        return source.expovariate(1 / mean) if self is Spread.EXPONENTIAL and mean else mean


class Retention(StrEnum):
    """How D keeps a finished turn: in its prefix cache until others need the room, or pinned for a time."""

    LEASE = "lease"
    PIN = "pin"


class Routing(StrEnum):
    """Whether a conversation stays with one D."""

    STICKY = "sticky"
    ROUND_ROBIN = "round-robin"


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes in tokens, `think` and `rate` in seconds and conversations a second.

    Conversations begin at random at `rate`; without one, `clients` hold them one after another. `think` is the mean of
    the pauses between turns.
    """

    conversations: int = 1000
    turns: int = 10
    first: int = 4096
    user: int = 150
    reply: int = 300
    think: float = 10.0
    rate: float | None = None
    clients: int = 16
    spread: Spread = Spread.CONSTANT
    pauses: Spread = Spread.EXPONENTIAL
    seed: int = 0

    def talks(self) -> Iterator["Talk"]:
        """The conversations that `seed` draws: every policy is shown the same ones."""
        draw, begins = Random(self.seed), 0.0
        for index in range(self.conversations):
            if self.rate is not None:
                begins += draw.expovariate(self.rate)
            first = max(1, round(self.spread.draw(self.first, draw)))
            pauses = tuple(self.pauses.draw(self.think, draw) for _ in range(self.turns - 1))
            yield Talk(index, begins, first, pauses)


@dataclass(frozen=True, slots=True)
class Talk:
    """One conversation: when it begins, its first prompt, and its pauses in seconds, one fewer than its turns."""

    index: int
    begins: float
    first: int
    pauses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Engines. `pool_tokens` is each D's KV cache, `prefill_pool_tokens` each P's prefix cache (0: it keeps none)."""

    prefill: int = 1
    decode: int = 1
    pool_tokens: int = 0
    prefill_pool_tokens: int = 0
    max_num_seqs: int = 256


@dataclass(frozen=True, slots=True)
class Policy:
    """How turns are served. `ttl` seconds and at most `pin_budget` of D's pool for pins; `direct`: D may prefill."""

    reuse: bool = True
    retention: Retention = Retention.LEASE
    routing: Routing = Routing.STICKY
    threshold: int | str = DEFAULT_RECOMPUTE_THRESHOLD
    ttl: float = 480.0
    pin_budget: float = 1.0
    direct: bool = False

    def __str__(self) -> str:
        return f"on, {self.retention}, {self.routing}" if self.reuse else f"off, {self.routing}"
