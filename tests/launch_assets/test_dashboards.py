"""The dashboards and alerts of both; that the proxy's ask for what it has is in tests/proxy/test_dashboards.py."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from neuron_pd.core.control import AcquireMiss
from neuron_pd.core.decision import Path as Way
from neuron_pd.core.decision import Reason
from neuron_pd.core.lease import LeaseEnd
from neuron_pd.core.metrics import COUNTERS, GAUGES, HISTOGRAMS, NAME
from tests.launch_assets.promql import SCRAPED, Watched, selectors, watched

NAMES = ("neuron-pd-engines", "neuron-pd-proxy")
ENGINES = watched("neuron-pd-engines")
RULES = [rule for name in NAMES for rule in watched(name).rules]
VLLM_LABELS = {"model_name", "engine"}  # of every metric of an engine


def samples(name: str, labels: tuple[str, ...], kind: str) -> dict[str, set[str]]:
    if kind == "histogram":
        return {f"{name}_bucket": {"le", *labels}, f"{name}_sum": set(labels), f"{name}_count": set(labels)}
    return {f"{name}_total" if kind == "counter" else name: set(labels)}


def ours() -> dict[str, set[str]]:
    """Every sample that the connector can have, by name, with its labels."""
    known: dict[str, set[str]] = {}
    for name, (_, labels) in COUNTERS.items():
        known |= samples(NAME.format(name), labels, "counter")
    for name in HISTOGRAMS:
        known |= samples(NAME.format(name), (), "histogram")
    for name in GAUGES:
        known |= samples(NAME.format(name), (), "gauge")
    return known


def test_every_query_asks_for_metrics_and_labels_that_exist() -> None:
    known = ours()
    asked: set[str] = set()
    for title, query in ENGINES.queries():
        for selector in selectors(promql_parser.parse(query)):
            asked.add(selector.name)
            if selector.name.startswith("vllm:"):
                continue
            assert selector.name in known, f"{title}: no metric {selector.name}"
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels <= known[selector.name] | SCRAPED | VLLM_LABELS, f"{title}: {labels}"
        grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")}
        assert grouped <= set().union(*known.values()) | SCRAPED, f"{title}: {grouped}"
    # And the other way round: nothing is counted that nobody looks at.
    assert {name for name in known if not name.endswith(("_sum", "_count"))} <= asked


@pytest.mark.vllm
def test_vllms_metrics_are_in_its_own_source() -> None:
    """Its registry is filled by a running engine only."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    places = ("v1/metrics/loggers.py", "distributed/kv_transfer/kv_connector/v1/nixl/stats.py")
    source = "".join((package / place).read_text() for place in places)
    named = set(re.findall(r'name="(vllm:\w+)"', source))
    asked = {one.name for _, query in ENGINES.queries() for one in selectors(promql_parser.parse(query))}
    asked = {re.sub(r"_(total|bucket)$", "", name) for name in asked if name.startswith("vllm:")}
    assert asked
    assert asked <= named


def test_labels_with_few_values_are_asked_for_as_they_are() -> None:
    values: dict[str, set[str]] = {
        "path": set(Way),
        "reason": set(Reason),
        "end": set(LeaseEnd),
        "outcome": {*AcquireMiss, "leased", "kept", "refused", "over_budget"},
        "kind": {"offered", "verified", "refused", "reused", "local"},
    }
    for title, query in ENGINES.queries():
        for selector in selectors(promql_parser.parse(query)):
            for matcher in selector.matchers.matchers:
                assert matcher.value in values.get(matcher.name, {matcher.value}), f"{title}: {matcher.value}"


def test_their_variable_is_filled_from_a_metric_that_exists() -> None:
    (template,) = [one for one in ENGINES.dashboard["templating"]["list"] if one["name"] == "job"]
    found = re.fullmatch(r"label_values\((\w+), job\)", template["query"]["query"])
    assert found is not None
    assert found[1] in ours()


@pytest.mark.parametrize("name", NAMES)
def test_legends_name_labels_of_their_query(name: str) -> None:
    for panel in watched(name).panels:
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert re.search(rf"\bby \([^)]*\b{label}\b[^)]*\)", target["expr"]), panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_is_one(name: str) -> None:
    board: Watched = watched(name)
    identifiers = [panel["id"] for panel in board.dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    assert board.dashboard["uid"] == name
    taken: set[tuple[int, int]] = set()
    for panel in board.dashboard["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert all(panel["description"] and panel["title"] for panel in board.panels)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_it_is_and_what_to_look_at(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}


def test_no_two_alerts_have_one_name() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
