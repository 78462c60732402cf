"""The Grafana dashboard and the Prometheus alerts ask only for what `/metrics` has."""

import re

import promql_parser

from neuron_pd.proxy.breaker import State
from neuron_pd.proxy.metrics import Counter, Histogram
from tests.launch_assets.promql import SCRAPED, selectors, watched
from tests.proxy.conftest import running

WATCHED = watched("neuron-pd-proxy")


async def metrics() -> dict[str, set[str]]:
    """Every sample that the proxy can have, by name, with its labels."""
    async with running() as cluster:
        known: dict[str, set[str]] = {}
        for member in vars(cluster.proxy.metrics).values():
            if isinstance(member, Counter):
                known[f"{member.name}_total"] = set(member.labels)
            elif isinstance(member, Histogram):
                known |= {f"{member.name}_bucket": {"le"}, f"{member.name}_sum": set(), f"{member.name}_count": set()}
        known |= {gauge.name: set(gauge.labels) for gauge in cluster.proxy.metrics.gauges}
        return known


async def test_every_query_asks_for_metrics_and_labels_that_exist() -> None:
    known = await metrics()
    asked: set[str] = set()
    for title, query in WATCHED.queries():
        for selector in selectors(promql_parser.parse(query)):
            assert selector.name in known, f"{title}: no metric {selector.name}"
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels <= known[selector.name] | SCRAPED, f"{title}: {labels}"
            asked.add(selector.name)
        grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")}
        assert grouped <= set().union(*known.values()) | SCRAPED, f"{title}: {grouped}"
    (template,) = [one for one in WATCHED.dashboard["templating"]["list"] if one["name"] == "job"]
    assert re.fullmatch(r"label_values\((\w+), job\)", template["query"]["query"])[1] in known  # type: ignore[index]
    # And the other way round: what nobody looks at is named here.
    unseen = {name for name in known if not name.endswith(("_sum", "_count"))} - asked
    assert {name.removeprefix("neuron_pd_proxy_") for name in unseen} <= {
        "build_info",
        "first_byte_seconds_bucket",
        "turn_seconds_bucket",
        "served_alone_total",
    }


def test_labels_with_few_values_are_asked_for_as_they_are() -> None:
    values = {"role": {"prefill", "decode"}, "outcome": {"hit", "miss"}, "state": set(State)}
    for title, query in WATCHED.queries():
        for selector in selectors(promql_parser.parse(query)):
            for matcher in selector.matchers.matchers:
                assert matcher.value in values.get(matcher.name, {matcher.value}), f"{title}: {matcher.value}"
