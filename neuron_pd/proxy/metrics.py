"""Counters, gauges and histograms of the proxy, in Prometheus' text format at `/metrics`.

They are plain numbers while requests run (prometheus_client's own objects take a lock and some microseconds each) and
become prometheus_client families when scraped.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from neuron_pd import __version__
from neuron_pd.core.transfer import TurnReport
from neuron_pd.proxy.recent import Recent

SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Counter:
    """Counts per combination of label values."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name, self.text, self.labels = name, text, labels
        self.values: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def add(self, *values: str, by: float = 1) -> None:
        self.values[values] += by

    def get(self, *values: str) -> float:
        return self.values.get(values, 0)

    def state(self) -> list[tuple[tuple[str, ...], float]]:
        return list(self.values.items())

    def family(self, others: Sequence[Any]) -> Metric:
        """Together with the states of others."""
        family = CounterMetricFamily(self.name, self.text, labels=self.labels)
        for values, counts in _by_labels(self.state(), others).items():
            family.add_metric(values, sum(counts))
        return family


class Histogram:
    """Durations in seconds."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def state(self) -> tuple[list[int], float]:
        return self.counts, self.total

    def family(self, others: Sequence[Any]) -> Metric:
        """Together with the states of others."""
        counts, totals = zip(self.state(), *others, strict=True)
        edges = [*(str(edge) for edge in SECONDS), "+Inf"]
        family = HistogramMetricFamily(self.name, self.text)
        summed = map(sum, zip(*counts, strict=True))
        family.add_metric([], list(zip(edges, accumulate(summed), strict=True)), sum(totals))
        return family


class Gauge:
    """Values read when scraped: `state` gives (label values, value) pairs.

    `across` puts the values of several workers together: their sum where it counts things, `min` or `max` where it is a
    yes or no.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        read: Callable[[], list[tuple[list[str], float]]],
        across: Callable[[list[float]], float] = sum,
    ) -> None:
        self.name, self.text, self.labels, self.state, self._across = name, text, labels, read, across

    def family(self, others: Sequence[Any]) -> Metric:
        """Together with the states of others."""
        family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for values, found in _by_labels(self.state(), others).items():
            family.add_metric(values, self._across(found))
        return family


def _by_labels(own: Iterable[Any], others: Sequence[Any]) -> dict[tuple[str, ...], list[float]]:
    """The values of each combination of labels, one of each process that has it."""
    found: dict[tuple[str, ...], list[float]] = {}
    for state in (own, *others):
        for labels, value in state:
            found.setdefault(tuple(labels), []).append(value)
    return found


class Metrics:
    """Everything that the proxy counts."""

    def __init__(self) -> None:
        prefix = "neuron_pd_proxy_"
        self.requests = Counter(f"{prefix}requests", "Requests, by path and status class", "path", "status")
        self.turns = Counter(f"{prefix}turns", "Generated turns, by the way they were served", "path")
        self.reuse = Counter(f"{prefix}reuse", "Turns by what became of reuse, and why", "outcome", "reason")
        self.conversations = Counter(
            f"{prefix}conversation_lookups", "Lookups by source of the identity", "source", "found"
        )
        self.store_failures = Counter(
            f"{prefix}store_failures", "Calls of the conversation store that came to nothing", "operation", "kind"
        )
        self.tokens = Counter(
            f"{prefix}tokens", "Prompt tokens: in all, offered by D, verified and reused by P", "kind"
        )
        self.alone = Counter(f"{prefix}served_alone", "Requests served by D without a hand-off, and why", "reason")
        self.disconnects = Counter(f"{prefix}client_disconnects", "Clients that left before the end, by phase", "phase")
        self.failures = Counter(f"{prefix}upstream_failures", "Upstream failures, by leg and kind", "leg", "kind")
        self.aborted = Counter(f"{prefix}aborted_streams", "Responses broken off after they had begun")
        self.queue_refusals = Counter(
            f"{prefix}queue_refusals", "Requests refused with 429: the line was full, or they waited too long", "reason"
        )
        self.moved = Counter(f"{prefix}conversations_moved", "Turns whose conversation left its decode engine")
        self.renewals = Counter(f"{prefix}lease_renewals", "Leases prolonged while P was awaited, by result", "result")
        self.releases = Counter(f"{prefix}lease_releases", "Leases given back unread, by result", "result")
        self.unread = Counter(f"{prefix}prefills_not_taken", "Prefills whose blocks D never took, by reason", "reason")
        self.acquire = Histogram(f"{prefix}acquire_seconds", "Asking D for a lease")
        self.prefill = Histogram(f"{prefix}prefill_seconds", "The whole prefill leg")
        self.first_byte = Histogram(f"{prefix}first_byte_seconds", "From the request to D's first byte")
        self.first_token = Histogram(
            f"{prefix}time_to_first_token_seconds", "From the request to a stream's first piece"
        )
        self.decode = Histogram(f"{prefix}decode_seconds", "The whole decode leg, of turns that ended well")
        self.turn = Histogram(f"{prefix}turn_seconds", "From the request to the end of the answer")
        self.streams = 0
        self.recent = Recent()
        self.gauges: list[Gauge] = [
            Gauge(f"{prefix}streams_in_flight", "Answers being streamed", (), lambda: [([], float(self.streams))]),
            Gauge(f"{prefix}build_info", "The version", ("version",), lambda: [([__version__], 1.0)], max),
        ]

    def prompt_tokens(self, report: TurnReport) -> None:
        """What P says of a prompt."""
        tokens = self.tokens.values
        tokens["prompt",] += report.prompt
        tokens["offered",] += report.offered
        tokens["verified",] += report.verified
        tokens["reused",] += report.reused

    @property
    def every(self) -> "list[Counter | Histogram | Gauge]":
        return [*(one for one in vars(self).values() if isinstance(one, Counter | Histogram)), *self.gauges]

    def state(self) -> dict[str, Any]:
        """All values, for another process to put together with its own."""
        return {one.name: one.state() for one in self.every}

    def text(self, others: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """The page for a scraper: of this process, and of others by their `state`."""
        registry = CollectorRegistry()
        registry.register(_Together(self, others))
        return generate_latest(registry)


class _Together(Collector):
    def __init__(self, metrics: Metrics, others: Sequence[Mapping[str, Any]]) -> None:
        self._metrics, self._others = metrics, others

    def collect(self) -> Iterator[Metric]:
        for one in self._metrics.every:
            yield one.family([other[one.name] for other in self._others if one.name in other])
