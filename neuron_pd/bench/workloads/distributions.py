"""The distributions of vLLM's `generate_conversations` files (its multi-turn benchmark's README names them)."""

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from neuron_pd.errors import UsageError

Sampler = Callable[[Random], int]

MEDIAN_RATIO = 0.85  # of a lognormal given by its average: vLLM's default
TAIL = 1e-9  # of a Zipf or Poisson distribution, beyond which nothing is drawn


def sampler(body: Any, where: str) -> Sampler:
    """A sampler of whole numbers for one entry of the file. UsageError naming `where` for anything else."""
    kind = body.get("distribution") if isinstance(body, Mapping) else None
    if kind not in _KINDS:
        raise UsageError(f"{where}: distribution must be one of {', '.join(_KINDS)}, not {kind!r}")
    try:
        drawn = _KINDS[kind](body)
        limit = body.get("max")
        return (lambda random: min(drawn(random), int(limit))) if limit and kind != "uniform" else drawn
    except KeyError as error:
        raise UsageError(f"{where}: {kind} needs {error.args[0]!r}") from None
    except (TypeError, ValueError):
        raise UsageError(f"{where}: {dict(body)} holds a number that {kind} cannot use") from None


def _constant(body: Mapping[str, Any]) -> Sampler:
    value = round(float(body["value"]))
    return lambda random: value


def _uniform(body: Mapping[str, Any]) -> Sampler:
    low, high = float(body["min"]), float(body["max"])
    if not 0 < low <= high:
        raise ValueError
    return lambda random: random.randint(math.ceil(low), math.floor(high))


def _lognormal(body: Mapping[str, Any]) -> Sampler:
    """By `mean` and `sigma` of the logarithm, or by `average` and the median's share of it, which is e^(−σ²/2)."""
    if "average" in body:
        ratio = float(body.get("median_ratio", MEDIAN_RATIO))
        mean, sigma = math.log(float(body["average"]) * ratio), math.sqrt(-2 * math.log(ratio))
    else:
        mean, sigma = float(body["mean"]), float(body["sigma"])
    return lambda random: round(random.lognormvariate(mean, sigma))


def _zipf(body: Mapping[str, Any]) -> Sampler:
    """P(k) ∝ k^(−alpha), k from 1, by rejection (Devroye, Non-Uniform Random Variate Generation, X.6.1)."""
    alpha = float(body["alpha"])
    if alpha <= 1:
        raise ValueError
    bound = 2.0 ** (alpha - 1)

    def draw(random: Random) -> int:
        while True:
            x: int = math.floor(max(random.random(), TAIL) ** (-1 / (alpha - 1)))
            t = (1 + 1 / x) ** (alpha - 1)
            if random.random() * x * (t - 1) / (bound - 1) <= t / bound:
                return x

    return draw


def _poisson(body: Mapping[str, Any]) -> Sampler:
    """Arrivals of a unit rate within `alpha`."""
    alpha = float(body["alpha"])
    if not 0 <= alpha < math.inf:
        raise ValueError

    def draw(random: Random) -> int:
        count, time = 0, random.expovariate(1.0)
        while time <= alpha:
            count, time = count + 1, time + random.expovariate(1.0)
        return count

    return draw


_KINDS: dict[str, Callable[[Mapping[str, Any]], Sampler]] = {
    "constant": _constant,
    "uniform": _uniform,
    "lognormal": _lognormal,
    "zipf": _zipf,
    "poisson": _poisson,
}
