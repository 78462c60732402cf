"""From what the scheduler counts to what a scrape of `/metrics` shows."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from vllm.config import VllmConfig

from neuron_pd.connector.stats import Counts, LeasePromMetrics, LeaseStats
from neuron_pd.core.metrics import COUNTERS, GAUGES, HISTOGRAMS

pytestmark = pytest.mark.vllm

QUIET = dict.fromkeys(GAUGES, 0.0)


@pytest.fixture
def exposed() -> Any:
    """The metrics of engines 0 and 1 in a registry of their own, and what a scrape of them shows."""
    registry = CollectorRegistry()

    def here(kind: Any) -> Any:
        return lambda **options: kind(registry=registry, **options)

    kinds = {kind: here(kind) for kind in (Counter, Gauge, Histogram)}
    engines: dict[int, list[object]] = {0: ["tiny", "0"], 1: ["tiny", "1"]}
    metrics = LeasePromMetrics(VllmConfig(), kinds, ["model_name", "engine"], engines)
    return metrics, lambda: generate_latest(registry).decode()


def test_what_was_counted_is_scraped_with_its_labels(exposed: Any) -> None:
    metrics, scrape = exposed
    counts = Counts()
    counts.add("turns", "read_back", "verified")
    counts.add("tokens", "reused", by=128)
    counts.observe("read_back_seconds", 0.02)
    stats = counts.take({**QUIET, "pinned_blocks": 7})
    metrics.observe(stats.data, engine_idx=1)
    lines = scrape().splitlines()
    where = 'engine="1",'
    assert f'neuron_pd_turns_total{{{where}model_name="tiny",path="read_back",reason="verified"}} 1.0' in lines
    assert f'neuron_pd_tokens_total{{{where}kind="reused",model_name="tiny"}} 128.0' in lines
    assert f'neuron_pd_read_back_seconds_count{{{where}model_name="tiny"}} 1.0' in lines
    assert f'neuron_pd_pinned_blocks{{{where}model_name="tiny"}} 7.0' in lines


def test_every_metric_can_be_exposed(exposed: Any) -> None:
    metrics, scrape = exposed
    counts = Counts()
    for name, (_, labels) in COUNTERS.items():
        counts.add(name, *labels)
    for name in HISTOGRAMS:
        counts.observe(name, 1.0)
    metrics.observe(counts.take(dict.fromkeys(GAUGES, 1.0)).data)
    shown = scrape()
    for name in (*COUNTERS, *HISTOGRAMS, *GAUGES):
        assert f"neuron_pd_{name}" in shown


def test_nothing_new_is_nothing_to_carry() -> None:
    counts = Counts()
    assert counts.take(QUIET) is not None  # the gauges' first values
    assert counts.take(QUIET) is None
    assert counts.take({**QUIET, "open_leases": 1}).events == [("open_leases", [], 1)]


def test_a_worker_s_statistics_take_the_scheduler_s_along() -> None:
    counts = Counts()
    counts.add("records", "kept")
    worker = LeaseStats()
    worker.record_failed_transfer()
    both = worker.aggregate(counts.take(QUIET))
    assert both.data["num_failed_transfers"] == [1]
    assert ("records", ["kept"], 1) in both.data["neuron_pd"]
    assert LeaseStats(data=both.data).reduce()["Num successful transfers"] == 0


def test_events_alone_do_not_look_like_transfers_in_vllm_s_log() -> None:
    counts = Counts()
    counts.add("records", "kept")
    assert counts.take({}).reduce() == {"Events": 1}


def test_totals_since_the_start_survive_being_taken() -> None:
    counts = Counts()
    counts.add("acquires", "leased")
    counts.take(QUIET)
    counts.add("acquires", "leased")
    assert (counts.totals["acquires_leased"], counts.totals["leases_read"]) == (2, 0)
