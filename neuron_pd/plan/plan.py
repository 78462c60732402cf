"""The plan: what a turn takes with and without reuse, in milliseconds, with its parts and error bands."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from neuron_pd.core.decision import AUTO, DEFAULT_RECOMPUTE_THRESHOLD, Path, Prompt, cheapest, choose, expected
from neuron_pd.plan.calibration import Calibration
from neuron_pd.plan.queueing import Queue, closed_queue, open_queue
from neuron_pd.plan.retention import Retention, retention
from neuron_pd.plan.turn import Account, Turn

LONGEST = 1 << 24  # tokens: no break-even below this means none


@dataclass(frozen=True, slots=True)
class Conversation:
    """Sizes in tokens of a conversation that begins with a prompt of some length; the planned turn is number `turn`."""

    user: int = 150
    reply: int = 300
    turn: int = 2

    def prompt(self, first: int) -> int:
        """The prompt of the planned turn."""
        return first + (self.turn - 1) * (self.reply + self.user)

    def history(self, first: int) -> int:
        """How much of that prompt D holds: everything but the new question."""
        return self.prompt(first) - self.user if self.turn > 1 else 0


@dataclass(frozen=True, slots=True)
class Load:
    """What else is going on: turns a second at random, or a number of conversations with `think` seconds between turns.

    Neither: an idle pair. `prefill` engines share the turns.
    """

    rate: float | None = None
    concurrency: int | None = None
    think: float = 0.0
    prefill: int = 1
    decode: int = 1

    @property
    def loaded(self) -> bool:
        return self.rate is not None or self.concurrency is not None


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve the turn. Milliseconds; `low` and `high` bound the TTFT's error band. None: no steady state."""

    turn: Turn
    account: Account
    queue: Queue
    band: float

    @property
    def queue_ms(self) -> float | None:
        return None if self.queue.wait is None else 1000 * self.queue.wait

    @property
    def ttft_ms(self) -> float | None:
        return None if self.queue_ms is None else 1000 * self.account.ttft + self.queue_ms

    @property
    def low(self) -> float | None:
        return None if self.ttft_ms is None else self.ttft_ms * max(0.0, 1 - self.band)

    @property
    def high(self) -> float | None:
        return None if self.ttft_ms is None else self.ttft_ms * (1 + self.band)


@dataclass(frozen=True, slots=True)
class Row:
    """The planned turn of a conversation that began with `length` tokens.

    `off` computes the whole prompt; `local` is P that still holds the last turn's prompt in its own cache and computes
    the reply and the question; `on` takes the way that the product's decision takes.
    """

    length: int
    off: Way
    local: Way
    on: Way

    @property
    def speedup(self) -> float | None:
        off, on = self.off.ttft_ms, self.on.ttft_ms
        return off / on if off is not None and on else None

    def as_json(self) -> dict[str, Any]:
        on, off = self.on, self.off
        return {
            "length": self.length,
            "prompt_tokens": off.turn.prompt,
            "reused_tokens": on.turn.reused,
            "ttft_ms_off": off.ttft_ms,
            "ttft_ms_off_low": off.low,
            "ttft_ms_off_high": off.high,
            "ttft_ms_on": on.ttft_ms,
            "ttft_ms_on_low": on.low,
            "ttft_ms_on_high": on.high,
            "ttft_speedup": self.speedup,
            "ttft_ms_local": self.local.ttft_ms,
            "prefill_ms_off": 1000 * off.account.prefill,
            "prefill_ms_on": 1000 * on.account.prefill,
            "compute_ms_off": 1000 * off.account.compute,
            "compute_ms_on": 1000 * on.account.compute,
            "transfer_ms_on": 1000 * on.account.transfer,
            "handover_ms_off": 1000 * off.account.handover,
            "handover_ms_on": 1000 * on.account.handover,
            "queue_ms_off": off.queue_ms,
            "queue_ms_on": on.queue_ms,
            "utilisation_off": off.queue.utilisation,
            "utilisation_on": on.queue.utilisation,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows, shortest first, the break-even in tokens (None: computing is always cheaper), and D's retention."""

    calibration: Calibration
    conversation: Conversation
    load: Load
    rows: Sequence[Row]
    break_even: int | None
    break_even_range: tuple[int | None, int | None]
    retention: Retention | None

    def as_json(self) -> dict[str, Any]:
        by = self.calibration
        per_byte = by.coefficients.moving(by.layout).per_byte
        return {
            "model": by.model,
            "instance": by.instance,
            "conversation": asdict(self.conversation),
            "load": asdict(self.load),
            "rows": [row.as_json() for row in self.rows],
            "break_even_tokens": self.break_even,
            "break_even_tokens_low": self.break_even_range[0],
            "break_even_tokens_high": self.break_even_range[1],
            "retention": None if self.retention is None else self.retention.as_json(),
            **asdict(by.layout),
            "bandwidth_bytes_per_s": 1 / per_byte if per_byte else None,
            "errors": dict(by.errors),
            "held_out": dict(by.held_out),
            "sources": dict(by.sources),
        }


def plan(
    by: Calibration,
    lengths: Sequence[int],
    conversation: Conversation,
    load: Load | None = None,
    threshold: int | str = DEFAULT_RECOMPUTE_THRESHOLD,
    pool_tokens: int | None = None,
    ttl: float = 480.0,
) -> Plan:
    """Plan conversations that begin with each of `lengths` tokens, equally often. `threshold`: tokens, or "auto"."""
    load = load or Load()
    turns = [_turns(by, length, conversation, threshold) for length in sorted(lengths)]
    by_way = [_queued(by, ways, conversation, load) for ways in zip(*turns, strict=True)]
    rows = [Row(length, *ways) for length, ways in zip(sorted(lengths), zip(*by_way, strict=True), strict=True)]
    return Plan(
        calibration=by,
        conversation=conversation,
        load=load,
        rows=rows,
        break_even=break_even(by, conversation.user),
        break_even_range=(
            break_even(by, conversation.user, max(0.0, 1 - by.band("transfer on"))),
            break_even(by, conversation.user, 1 + by.band("transfer on")),
        ),
        retention=_retention(by, max(lengths), conversation, load, pool_tokens or by.pool_tokens, ttl),
    )


def decide(by: Calibration, prompt: Prompt, threshold: int | str, others: int = 0, *, direct: bool = False) -> Path:
    """The way that the product takes: the proxy asks first whether D should serve the turn `direct`, then P decides.

    P goes by `threshold` in tokens, or by cost where that is "auto".
    """
    costs = by.coefficients.costs(by.layout, others, direct=direct)
    if direct and cheapest(expected(prompt, costs)) is Path.DIRECT:
        return Path.DIRECT
    path, _ = choose(prompt.held, prompt.local, 0 if threshold == AUTO else int(threshold))
    if threshold == AUTO and path is Path.READ_BACK:
        return cheapest(expected(prompt, replace(costs, direct=None)))
    return path


def break_even(by: Calibration, user: int, slower: float = 1.0) -> int | None:
    """The fewest tokens, in whole blocks, that the cost model would fetch rather than compute; None: it never would.

    `slower` multiplies what a read takes. What fetching saves is convex in the tokens, so there is one break-even.
    """
    seconds = by.coefficients
    read = {
        name: slower * getattr(seconds, name)
        for name in ("read_latency", "read_wait", "acquire", "per_byte", "per_descriptor")
    }
    costs = replace(seconds, **read).costs(by.layout)

    def fetches(blocks: int) -> bool:
        held = blocks * by.layout.block_size
        return cheapest(expected(Prompt(held + user, held), costs)) is Path.READ_BACK

    low, high = 0, LONGEST // by.layout.block_size
    if not fetches(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fetches(middle) else (middle, high)
    return high * by.layout.block_size


def _turns(by: Calibration, length: int, conversation: Conversation, threshold: int | str) -> tuple[Turn, Turn, Turn]:
    """Off, local, on."""
    prompt, held = conversation.prompt(length), by.layout.whole(conversation.history(length))
    local = by.layout.whole(conversation.history(length) - conversation.reply)
    way = decide(by, Prompt(prompt, held), threshold)
    reused = held if way is Path.READ_BACK else 0
    return Turn(prompt, held=held), Turn(prompt, local=local, held=held), Turn(prompt, reused, held=held)


def _queued(by: Calibration, turns: Sequence[Turn], conversation: Conversation, load: Load) -> list[Way]:
    """All lengths of one way: they share the engines, so they wait alike."""
    accounts = [by.account(turn) for turn in turns]
    services = [account.compute for account in accounts]
    queue = Queue(0.0, 0.0)
    if load.rate is not None:
        queue = open_queue(load.rate, services, load.prefill)
    elif load.concurrency is not None:
        service = sum(services) / len(services)
        rest = sum(account.ttft for account in accounts) / len(accounts) - service
        reply = _reply_seconds(by, max(turn.prompt for turn in turns), conversation.reply, 0)
        queue = closed_queue(load.concurrency, service, rest + reply + load.think, load.prefill)
    legs = ["ttft on" if turn.reused else "ttft off" for turn in turns]
    return [Way(turn, account, queue, by.band(leg)) for turn, account, leg in zip(turns, accounts, legs, strict=True)]


def _reply_seconds(by: Calibration, context: int, tokens: int, others: int) -> float:
    return tokens * by.decode.seconds(context, others)


def _retention(
    by: Calibration, length: int, conversation: Conversation, load: Load, pool_tokens: int, ttl: float
) -> Retention | None:
    if not pool_tokens:
        return None
    left = conversation.prompt(length) + conversation.reply
    turn_tokens = by.layout.blocks(left) * by.layout.block_size
    rate = None if load.rate is None else load.rate / load.decode
    return retention(pool_tokens, turn_tokens, ttl, rate, _reply_seconds(by, left, conversation.reply, 0))
