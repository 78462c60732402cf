"""A Grafana dashboard and a file of Prometheus alerts, and what their queries ask for."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import promql_parser
import yaml

from tests.launch_assets.tools import LAUNCH

# Set by Prometheus when it scrapes.
SCRAPED = {"job", "instance"}
# How Grafana fills its variables in.
VARIABLES = {"$__rate_interval": "5m", "$job": ".*"}


class Watched(NamedTuple):
    dashboard: dict[str, Any]
    rules: list[dict[str, Any]]

    @property
    def panels(self) -> list[dict[str, Any]]:
        return [panel for panel in self.dashboard["panels"] if panel["type"] != "row"]

    def queries(self) -> Iterator[tuple[str, str]]:
        """(the panel's or the alert's title, its query)"""
        for panel in self.panels:
            for target in panel["targets"]:
                expression = target["expr"]
                for name, value in VARIABLES.items():
                    expression = expression.replace(name, value)
                yield panel["title"], expression
        for rule in self.rules:
            yield rule["alert"], rule["expr"]


def watched(name: str) -> Watched:
    alerts = yaml.safe_load((LAUNCH / "prometheus" / f"{name}.rules.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    return Watched(json.loads((LAUNCH / "grafana" / f"{name}.json").read_text()), rules)


def selectors(node: Any) -> Iterator[Any]:
    """Every selector of metrics in a query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (child := getattr(node, name, None)) is not None:
            yield from selectors(child)
    for child in getattr(node, "args", ()):
        yield from selectors(child)
