"""docs/operations.md explains every reason, watches metrics that exist, and knows every alert."""

import re

import yaml

from neuron_pd.core.control import AcquireMiss
from neuron_pd.core.decision import Reason
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables below a heading."""
    text = re.split(r"^## ", PAGE.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]


def test_every_reason_is_explained_with_what_to_do() -> None:
    explained = [row[0].strip(" `") for row in rows("Why a turn was recomputed")]
    assert sorted(explained) == sorted([*Reason, *AcquireMiss])
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in rows("Why a turn was recomputed"))


def test_every_metric_that_is_watched_exists() -> None:
    known = re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    watched = [name for row in rows("What to watch") for name in re.findall(r"`([a-z_]{6,})", row[0])]
    labels = {"outcome", "reason", "_bytes"}
    assert {name.removeprefix("neuron_pd_proxy_") for name in watched} - labels <= set(known)


def test_every_alert_has_a_first_thing_to_do() -> None:
    files = [yaml.safe_load(path.read_text()) for path in (ROOT / "launch/prometheus").glob("*.yml")]
    alerts = {rule["alert"] for file in files for group in file["groups"] for rule in group["rules"]}
    assert alerts == {name for row in rows("What to watch") for name in re.findall(r"`(NeuronPD\w+)`", row[0])}
