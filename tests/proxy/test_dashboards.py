"""The Grafana dashboard and the Prometheus alerts ask only for what `/metrics` has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from neuron_pd.proxy.breaker import State
from neuron_pd.proxy.metrics import Counter, Histogram
from tests.proxy.conftest import running

LAUNCH = Path(__file__).parents[2] / "launch"
DASHBOARD = json.loads((LAUNCH / "grafana" / "neuron-pd-proxy.json").read_text())
ALERTS = yaml.safe_load((LAUNCH / "prometheus" / "neuron-pd-proxy.rules.yml").read_text())
# Set by Prometheus when it scrapes.
SCRAPED = {"job", "instance"}
# How Grafana fills its variables in.
VARIABLES = {"$__rate_interval": "5m", "$job": ".*"}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def selectors(node: Any) -> Iterator[Any]:
    """Every selector of metrics in a query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (child := getattr(node, name, None)) is not None:
            yield from selectors(child)
    for child in getattr(node, "args", ()):
        yield from selectors(child)


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
    for title, query in queries():
        for selector in selectors(promql_parser.parse(query)):
            assert selector.name in known, f"{title}: no metric {selector.name}"
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels <= known[selector.name] | SCRAPED, f"{title}: {labels}"
            asked.add(selector.name)
        grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")}
        assert grouped <= set().union(*known.values()) | SCRAPED, f"{title}: {grouped}"
    (template,) = [one for one in DASHBOARD["templating"]["list"] if one["name"] == "job"]
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
    for title, query in queries():
        for selector in selectors(promql_parser.parse(query)):
            for matcher in selector.matchers.matchers:
                assert matcher.value in values.get(matcher.name, {matcher.value}), f"{title}: {matcher.value}"


def test_legends_name_labels_of_their_query() -> None:
    for panel in panels():
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert re.search(rf"\bby \([^)]*\b{label}\b[^)]*\)", target["expr"]), panel["title"]


def test_the_dashboard_is_one() -> None:
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert all(panel["description"] and panel["title"] for panel in panels())


@pytest.mark.parametrize("rule", ALERTS["groups"][0]["rules"], ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_it_is_and_what_to_look_at(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
