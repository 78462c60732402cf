"""Counters, gauges and histograms of the proxy, in Prometheus' text format at `/metrics`.

They are plain numbers while requests run (prometheus_client's own objects take a lock and some microseconds each) and
become prometheus_client families when scraped.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from neuron_pd import __version__
from neuron_pd.proxy.recent import Recent

SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Counter:
    """Counts per combination of label values."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name, self.text, self.labels = name, text, labels
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, *values: str, by: float = 1) -> None:
        self.values[values] = self.values.get(values, 0) + by

    def get(self, *values: str) -> float:
        return self.values.get(values, 0)

    def family(self) -> Metric:
        family = CounterMetricFamily(self.name, self.text, labels=self.labels)
        for values, count in self.values.items():
            family.add_metric(values, count)
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

    def family(self) -> Metric:
        edges = [*(str(edge) for edge in SECONDS), "+Inf"]
        family = HistogramMetricFamily(self.name, self.text)
        family.add_metric([], list(zip(edges, accumulate(self.counts), strict=True)), self.total)
        return family


class Gauge:
    """Values read when scraped: `read` gives (label values, value) pairs."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], read: Callable[[], list[tuple[list[str], float]]]
    ) -> None:
        self.name, self.text, self.labels, self.read = name, text, labels, read

    def family(self) -> Metric:
        family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for values, value in self.read():
            family.add_metric(values, value)
        return family


class Metrics(Collector):
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
        self.moved = Counter(f"{prefix}conversations_moved", "Turns whose conversation left its decode engine")
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
            Gauge(f"{prefix}build_info", "The version", ("version",), lambda: [([__version__], 1.0)]),
        ]

    def collect(self) -> Iterator[Metric]:
        for member in vars(self).values():
            if isinstance(member, Counter | Histogram):
                yield member.family()
        for gauge in self.gauges:
            yield gauge.family()

    def text(self) -> bytes:
        """The page for a scraper."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
