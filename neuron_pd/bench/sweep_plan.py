"""What a sweep measures: settings, repeats and legs, in the order of measurement."""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple, Self

from neuron_pd.bench.records import OFF, ON, Setting
from neuron_pd.bench.workloads import PLAIN, SYNTHETIC, Sizes
from neuron_pd.errors import UsageError

TURN_OVERHEAD_TOKENS = 40  # what a chat template may put around one user message and one reply
LONGEST_TURN = 3  # in user messages, what an agent says in one turn: a tool result, or a summary beside a question
BUSTS = ("salt", "prefix", "none")
# The published measurement: 10 turns of about 150 tokens, replies of about 300, prompts of 2k to 24k.
ARTICLE = {
    "lengths": tuple(1024 * size for size in (2, 4, 8, 12, 16, 20, 24)),
    "turns": 10,
    "user_tokens": 150,
    "reply_tokens": 300,
}


class Planned(NamedTuple):
    """One cell to measure: a leg of a setting. `number` counts settings and repeats; both legs of one share it."""

    number: int
    leg: str
    setting: Setting
    repeat: int

    @property
    def key(self) -> tuple[str, Setting, int]:
        return self.leg, self.setting, self.repeat


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What to measure. Lengths and sizes are in tokens; `length` is that of a conversation's first prompt.

    Every length is measured at every load (`concurrency` conversations at a time, or `rates` arriving a second) and at
    every `think` time, seconds before each later turn. `conversations` a cell: as many as run at a time if not given, 8
    where they arrive, and all that a file holds. `cache_bust` says what keeps conversations from finding each other's
    KV: a `salt` of their own, a `prefix` to their first message, or nothing. `seed` chooses the words; `nonce` makes
    the salts of this run unlike those of any other. `model` None is the first that the server lists. `turns` 0 is all
    that a file has. `links` are rates of an emulated interconnect, at each of which everything is measured. UsageError
    for numbers that cannot be measured.
    """

    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    turns: int = 4
    user_tokens: int = 150
    reply_tokens: int = 32
    legs: tuple[str, ...] = (OFF, ON)
    repeats: int = 1
    seed: int = 0
    model: str | None = None
    warm_up: bool = True
    concurrency: tuple[int, ...] = (1,)
    rates: tuple[float, ...] = ()
    think: tuple[float, ...] = (0.0,)
    conversations: int | None = None
    workload: str = PLAIN
    time_scale: float = 1.0
    ignore_eos: bool = True
    cache_bust: str = "salt"
    links: tuple[str, ...] = ()
    nonce: str = field(default_factory=lambda: secrets.token_hex(4))

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 16:
            raise UsageError("prompt lengths must be 16 tokens or more")
        if self.turns < 2 and (self.turns or self.workload in SYNTHETIC):
            raise UsageError("a conversation needs at least 2 turns: the first is cold with and without reuse")
        if min(self.user_tokens, self.reply_tokens, self.repeats) < 1:
            raise UsageError("user tokens, reply tokens and repeats must be 1 or more")
        if not self.legs or not set(self.legs) <= {OFF, ON}:
            raise UsageError("a leg is on or off")
        if self.cache_bust not in BUSTS:
            raise UsageError(f"a cache is busted by {', '.join(BUSTS)}")
        self._check_load()

    def _check_load(self) -> None:
        if not self.concurrency or min(self.concurrency) < 1:
            raise UsageError("concurrency must be 1 or more")
        if any(rate <= 0 for rate in self.rates):
            raise UsageError("arrival rates must be above 0 conversations a second")
        if not self.think or min(self.think) < 0 or self.time_scale <= 0:
            raise UsageError("think times must be 0 seconds or more, and the time scale above 0")
        if self.conversations is not None and self.conversations < 1:
            raise UsageError("conversations must be 1 or more")

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """The plan that a records file's header holds, under a nonce of its own. TypeError when it is not one."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in body.items()}
        return cls(**{name: value for name, value in values.items() if name != "nonce"})

    @property
    def later_tokens(self) -> int:
        """At most how many tokens a conversation adds to its first prompt."""
        user = self.user_tokens if self.workload == PLAIN else LONGEST_TURN * self.user_tokens
        return self.turns * (user + self.reply_tokens + TURN_OVERHEAD_TOKENS) - user

    def sizes(self, setting: Setting) -> Sizes:
        return Sizes(setting.length, self.turns, self.user_tokens, self.reply_tokens)

    def conversations_at(self, setting: Setting) -> int | None:
        """How many conversations a cell has; None for all that the workload holds."""
        if self.conversations is not None or not setting.length:
            return self.conversations
        return setting.concurrency or 8

    def cells(self, *, sized: bool = True, timed: bool = False) -> Iterator[Planned]:
        """In the order of measurement. The leg that goes first alternates, so that neither always has the warm seat.

        A workload that is not `sized` has lengths of its own, one that is `timed` has times of its own.
        """
        lengths = self.lengths if sized else (0,)
        loads = [(0, 0.0)] if timed else [(0, rate) for rate in self.rates] or [(n, 0.0) for n in self.concurrency]
        thinks = (0.0,) if timed else self.think
        each = product(self.links or ("",), lengths, loads, thinks, range(self.repeats))
        for number, (link, length, load, think, repeat) in enumerate(each):
            for leg in self.legs if number % 2 == 0 else reversed(self.legs):
                yield Planned(number, leg, Setting(length, *load, think, link), repeat)
