"""How long a turn waits for a prefill engine: mean times, of engines that each serve one turn after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance


@dataclass(frozen=True, slots=True)
class Queue:
    """Mean wait in seconds (None: the queue grows without end) and the engines' utilisation, 0 to 1 and above."""

    wait: float | None
    utilisation: float


def open_queue(rate: float, services: Sequence[float], servers: int = 1) -> Queue:
    """Turns arrive at random, `rate` a second, whatever became of those before; `services` are equally likely, seconds.

    Allen and Cunneen's approximation for M/G/c: the wait of M/M/c (Erlang C) times (1 + the squared coefficient of
    variation of the service) / 2. With one server that is the Pollaczek-Khinchine formula, exact.
    """
    mean = fmean(services)
    load = rate * mean
    if load >= servers:
        return Queue(None, load / servers)
    if load == 0:
        return Queue(0.0, 0.0)
    variation = pvariance(services) / mean**2
    wait = erlang_c(load, servers) * mean / (servers - load)
    return Queue(wait * (1 + variation) / 2, load / servers)


def erlang_c(load: float, servers: int) -> float:
    """The probability of waiting in M/M/c, `load` in erlangs, below `servers`. By Erlang B's recursion."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return servers * blocked / (servers - load * (1 - blocked))


def closed_queue(clients: int, service: float, away: float, servers: int = 1) -> Queue:
    """`clients` conversations each take turns: `service` seconds on an engine, then `away` seconds until the next turn.

    Exact mean value analysis (Reiser and Lavenberg, 1980) of one queue and a delay, with exponential service times; of
    several servers by Seidmann's approximation: one that is `servers` times as fast, and a delay for the rest.
    """
    fast, delay = service / servers, service * (servers - 1) / servers
    queued, through = 0.0, 0.0
    response = fast
    for present in range(1, clients + 1):
        response = fast * (1 + queued)
        through = present / (response + delay + away)
        queued = through * response
    return Queue(max(0.0, response - fast), through * fast)
