"""What the connector counts, on its way to `/metrics` of the API server and to the control path's `stats`.

The scheduler's side counts; vLLM carries connector statistics from each engine to the API server as one object that
must be plain data. So ours ride in upstream's NIXL statistics, as a list of [metric, labels, value] under one more key.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics

from neuron_pd.core.lease import LeaseEnd
from neuron_pd.core.metrics import COUNTERS, GAUGES, HISTOGRAMS, NAME

EVENTS = "neuron_pd"
Event = tuple[str, list[str], float]


class LeaseStats(NixlKVConnectorStats):
    """Upstream's transfer statistics with our events."""

    def reset(self) -> None:
        super().reset()
        self.data[EVENTS] = []

    @property
    def events(self) -> list[Event]:
        return self.data[EVENTS]

    def is_empty(self) -> bool:
        return super().is_empty() and not self.events

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log: its own figures where something was transferred or failed, else how much happened here."""
        return {"Events": len(self.events)} if super().is_empty() else super().reduce()


class Counts:
    """Totals since the start, and what has happened since it was last taken."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter({f"leases_{how}": 0 for how in LeaseEnd})
        self._events: list[Event] = []
        self._gauges: dict[str, float] = {}

    def add(self, metric: str, *labels: str, by: float = 1) -> None:
        """Count under one of `COUNTERS`, with a value for each of its labels."""
        self._totals["_".join((metric, *labels))] += by  # type: ignore[assignment]
        self._events.append((metric, [str(label) for label in labels], by))

    def observe(self, metric: str, value: float) -> None:
        """Observe under one of `HISTOGRAMS`; the totals have the sum and the number of observations."""
        self._totals[f"{metric}_sum"] += value  # type: ignore[assignment]
        self._totals[f"{metric}_count"] += 1
        self._events.append((metric, [], value))

    @property
    def totals(self) -> dict[str, float]:
        return dict(self._totals)

    def take(self, gauges: Mapping[str, float]) -> LeaseStats | None:
        """What has happened and which gauges have changed since the last time; None when nothing has."""
        for name, value in gauges.items():
            if self._gauges.get(name) != value:
                self._gauges[name] = value
                self._events.append((name, [], value))
        if not self._events:
            return None
        stats = LeaseStats()
        stats.data[EVENTS], self._events = self._events, []
        return stats


@dataclass
class Family:
    """One metric of all engines that an API server speaks for."""

    metric: Any
    engines: dict[int, list[object]]

    def child(self, engine: int, labels: list[str]) -> Any:
        return self.metric.labels(*self.engines[engine], *labels)


class LeasePromMetrics(NixlPromMetrics):
    """Upstream's metrics, and ours as `neuron_pd_…`."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)

        def family(make: Any, name: str, text: str, labels: tuple[str, ...] = (), **options: Any) -> Family:
            made = make(name=NAME.format(name), documentation=text, labelnames=[*labelnames, *labels], **options)
            return Family(made, per_engine_labelvalues)

        self.counters = {n: family(self._counter_cls, n, text, labels) for n, (text, labels) in COUNTERS.items()}
        self.histograms = {
            n: family(self._histogram_cls, n, text, buckets=buckets) for n, (text, buckets) in HISTOGRAMS.items()
        }
        self.gauges = {
            n: family(self._gauge_cls, n, text, multiprocess_mode="mostrecent") for n, text in GAUGES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        super().observe(transfer_stats_data, engine_idx)
        for metric, labels, value in transfer_stats_data.get(EVENTS, ()):
            if metric in self.counters:
                self.counters[metric].child(engine_idx, labels).inc(value)
            elif metric in self.histograms:
                self.histograms[metric].child(engine_idx, labels).observe(value)
            else:
                self.gauges[metric].child(engine_idx, labels).set(value)
