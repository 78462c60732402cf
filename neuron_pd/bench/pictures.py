"""The two pictures: TTFT against prompt length, and the prefill leg as paired stacked bars.

Colours are Okabe and Ito's, told apart by the colour-blind; markers, line styles and hatches say the same without
colour.
"""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from neuron_pd.bench.figures import LengthRow
from neuron_pd.errors import MissingDependency

OFF_COLOUR, ON_COLOUR, TRANSFER_COLOUR, INK, GRID = "#D55E00", "#0072B2", "#E69F00", "#1b1b1a", "#d9d9d6"
# In the page the pictures follow its light or dark colours: each drawn colour becomes one of its custom properties.
PAGE_COLOURS = {OFF_COLOUR: "--off", ON_COLOUR: "--on", TRANSFER_COLOUR: "--transfer", INK: "--ink", GRID: "--grid"}
STYLE = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "hatch.linewidth": 1.2,
    "svg.fonttype": "none",
}
Draw = Callable[[Any, Sequence[LengthRow]], None]


def draw_ttft(axes: Any, rows: Sequence[LengthRow]) -> None:
    """TTFT against prompt length: one line a leg, the ratio beside each pair."""
    for leg, colour, marker, dashes in (("off", OFF_COLOUR, "s", "--"), ("on", ON_COLOUR, "o", "-")):
        points = [
            (row.prompt_tokens or row.length, value) for row in rows if (value := _value(row, "ttft", leg)) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, dashes, color=colour, marker=marker, markersize=6, linewidth=2, label=LEGENDS[leg])
    for row in rows:
        if row.speedup is not None:
            at, ends = row.prompt_tokens or row.length, (row.ttft_ms_on or 0, row.ttft_ms_off or 0)
            axes.plot((at, at), ends, color=GRID, linewidth=1, zorder=1)
            middle = (at, sum(ends) / 2)
            axes.annotate(f"{row.speedup:.1f}×", middle, (4, 0), textcoords="offset points", va="center", fontsize=9.5)
    axes.margins(x=0.08)
    axes.set(title="Time to first token", xlabel="prompt, tokens (median)", ylabel="TTFT, ms (median)")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(_thousands)
    axes.yaxis.set_major_formatter(_thousands)


def draw_prefill(axes: Any, rows: Sequence[LengthRow]) -> None:
    """The prefill leg by prompt length: OFF beside ON, ON split into computing and the KV transfer."""
    places = range(len(rows))
    off = [row.prefill_ms_off or 0 for row in rows]
    compute = [row.compute_ms_on or 0 for row in rows]
    transfer = [row.transfer_ms_on or 0 for row in rows]
    left, right = [at - 0.2 for at in places], [at + 0.2 for at in places]
    edge = {"width": 0.36, "edgecolor": INK, "linewidth": 0.8}
    axes.bar(left, off, color=OFF_COLOUR, label=LEGENDS["off"], **edge)
    axes.bar(right, compute, color=ON_COLOUR, label="ON: compute and the rest", hatch="//", **edge)
    axes.bar(right, transfer, bottom=compute, color=TRANSFER_COLOUR, label="ON: KV transfer D→P", hatch="..", **edge)
    for at, row in enumerate(rows):
        for x, value in ((left[at], row.prefill_ms_off), (right[at], row.prefill_ms_on)):
            if value is not None:
                axes.annotate(f"{value:,.0f}", (x, value), (0, 3), textcoords="offset points", ha="center", fontsize=9)
    axes.set_xticks(list(places), [f"{row.prompt_tokens or row.length:,}" for row in rows])
    axes.set(title="Prefill leg", xlabel="prompt, tokens (median)", ylabel="duration, ms (median)")
    axes.yaxis.set_major_formatter(_thousands)
    axes.margins(y=0.1)


LEGENDS = {"off": "OFF: recompute", "on": "ON: read back D→P"}
PICTURES: dict[str, Draw] = {"ttft": draw_ttft, "prefill": draw_prefill}


def png(name: str, rows: Sequence[LengthRow], path: Path) -> None:
    """Write one of `PICTURES` for these rows, on white."""
    _figure(name, rows).savefig(path, format="png", dpi=160, facecolor="white")


def svg(name: str, rows: Sequence[LengthRow]) -> str:
    """One of `PICTURES` as an SVG element to put into a page: no background, the page's colours, ids of its own."""
    page = io.StringIO()
    _figure(name, rows).savefig(page, format="svg", transparent=True, metadata={"Date": None})
    text = page.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    for colour, variable in PAGE_COLOURS.items():
        text = re.sub(colour, f"var({variable})", text, flags=re.IGNORECASE)
    return text


def _figure(name: str, rows: Sequence[LengthRow]) -> Any:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(f"the report needs {error.name}: pip install 'neuron-pd[bench]'") from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.3), layout="constrained")
        axes = figure.add_subplot()
        PICTURES[name](axes, rows)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, loc="upper left")
    return figure


def _value(row: LengthRow, figure: str, leg: str) -> float | None:
    value: float | None = getattr(row, f"{figure}_ms_{leg}")
    return value


def _thousands(value: float, position: int) -> str:
    return f"{value:,.0f}"
