"""The report in a real browser: Chromium, on a wide and a narrow screen, in light, in dark and on paper."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from neuron_pd.bench.records import Run
from neuron_pd.bench.report import write_report

from .making import both_legs

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: install one of {', '.join(NAMES)}")

# Runs in a copy of the page: what the browser made of it, as text in an element of its own.
PROBE = """
<script>
const shown = e => { const box = e.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
const colour = (e, name) => getComputedStyle(e)[name];
const labels = [...document.querySelectorAll("figure svg text")];
const found = {
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  figures: [...document.querySelectorAll("figure svg")].map(shown),
  labels: labels.length,
  unreadable: labels.filter(e => shown(e) && e.getBoundingClientRect().height < 6).length,
  ink: colour(document.body, "color"),
  paper: colour(document.body, "backgroundColor"),
  label: colour(labels[0], "fill"),
  series: ["--off", "--on", "--transfer"].map(name => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`;
    return colour(probe, "color");
  }),
  columns: colour(document.querySelector(".pictures"), "gridTemplateColumns").split(" ").length,
};
const text = Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify(found)});
document.body.appendChild(text);
</script>
"""


def run(directory: Path, page: Path, *flags: str) -> str:
    assert BROWSER is not None
    always = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory / 'profile'}")
    command = [BROWSER, *always, *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(Run({}, both_legs()), tmp_path_factory.mktemp("report"))


def seen(page: Path, directory: Path, size: str, *flags: str) -> dict[str, Any]:
    probed = directory / "probed.html"
    probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
    text = run(directory, probed, f"--window-size={size}", "--dump-dom", *flags)
    match = re.search(r'<pre id="found">(.*?)</pre>', text, re.DOTALL)
    assert match is not None, text[-500:]
    found: dict[str, Any] = json.loads(match[1])
    return found


def luminance(colour: str) -> float:
    """Of `rgb(r, g, b)`, by WCAG 2.2."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_readable_in_light_and_dark(page: Path, tmp_path: Path, scheme: str) -> None:
    found = seen(page, tmp_path, "1300,900", f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}")
    assert (luminance(found["paper"]) < 0.1) == (scheme == "dark")
    assert contrast(found["ink"], found["paper"]) >= 7
    assert contrast(found["label"], found["paper"]) >= 7
    # Lines and bars stand out from the paper; the palest of them, the transfer, is drawn with an outline.
    apart = [contrast(colour, found["paper"]) for colour in found["series"]]
    assert all(one >= least for one, least in zip(apart, (3, 3, 2), strict=True)), apart
    assert found["figures"] == [True] * 6
    assert found["labels"] > 50
    assert found["unreadable"] == 0
    assert (found["overflow"], found["columns"]) == (0, 2)


def test_on_a_narrow_screen_nothing_is_cut_off(page: Path, tmp_path: Path) -> None:
    found = seen(page, tmp_path, "500,900")
    assert (found["overflow"], found["columns"]) == (0, 1)


def test_on_paper(page: Path, tmp_path: Path) -> None:
    run(tmp_path, page, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}")
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 4
