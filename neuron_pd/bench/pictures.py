"""The pictures of a run as files and as parts of a page: the published pair first, then what explains it."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_pd.bench.drawings import (
    GREEN,
    GREY,
    GRID,
    INK,
    OFF_COLOUR,
    ON_COLOUR,
    PICTURES,
    PINK,
    SKY,
    TRANSFER_COLOUR,
    YELLOW,
    Drawing,
)
from neuron_pd.errors import MissingDependency

# In the page the pictures follow its light or dark colours: each drawn colour becomes one of its custom properties.
PAGE_COLOURS = {
    OFF_COLOUR: "--off",
    ON_COLOUR: "--on",
    TRANSFER_COLOUR: "--transfer",
    INK: "--ink",
    GRID: "--grid",
    GREEN: "--green",
    PINK: "--pink",
    SKY: "--sky",
    YELLOW: "--yellow",
    GREY: "--grey",
}
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

CROWDED = ("split", "decisions")  # their bars leave no room for a legend among them


def draw(name: str, drawing: Drawing) -> "Picture":
    """Draw one of `PICTURES`."""
    png, svg = io.BytesIO(), io.StringIO()
    with _figure(name, drawing) as figure:
        figure.savefig(png, format="png", dpi=160, facecolor="white")
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    return Picture(name, png.getvalue(), svg.getvalue())


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn picture: a PNG on white, and SVG text without a background."""

    name: str
    png: bytes
    svg: str

    def save(self, directory: Path) -> None:
        """Write `name`.png and `name`.svg, both on white."""
        (directory / f"{self.name}.png").write_bytes(self.png)
        on_white = self.svg.replace("<svg ", '<svg style="background: white" ', 1)
        (directory / f"{self.name}.svg").write_text(on_white, encoding="utf-8")

    def element(self) -> str:
        """The SVG element to put into a page: the page's colours, and ids of its own."""
        text = re.sub(r"<metadata>.*?</metadata>", "", self.svg[self.svg.index("<svg") :], flags=re.DOTALL)
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{self.name}-", text)
        for colour, variable in PAGE_COLOURS.items():
            text = re.sub(colour, f"var({variable})", text, flags=re.IGNORECASE)
        return text


@contextmanager
def _figure(name: str, drawing: Drawing) -> Iterator[Any]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency(f"the report needs {error.name}: pip install 'neuron-pd[bench]'") from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.3), layout="constrained")
        axes = figure.add_subplot()
        PICTURES[name](axes, drawing)
        labels = axes.get_legend_handles_labels()[0]
        if name in CROWDED or len(labels) > 4:
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
        elif labels:
            axes.legend(frameon=False, loc="best")
        yield figure
