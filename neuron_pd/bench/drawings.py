"""What each picture shows, drawn into a pair of axes.

Colours are Okabe and Ito's, told apart by the colour-blind; markers, line styles and hatches say the same without
colour.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_pd.bench.figures import LengthRow, held, later_turns, setting_of, summary
from neuron_pd.bench.records import OFF, ON, Cell, Record, Setting, Transfers
from neuron_pd.bench.split import LABELS

OFF_COLOUR, ON_COLOUR, TRANSFER_COLOUR, INK, GRID = "#D55E00", "#0072B2", "#E69F00", "#1b1b1a", "#d9d9d6"
GREEN, PINK, SKY, YELLOW, GREY = "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#8c8c88"
LEGENDS = {OFF: "OFF: recompute", ON: "ON: read back D→P"}
LEG_STYLE = {OFF: (OFF_COLOUR, "s", "--"), ON: (ON_COLOUR, "o", "-")}
MARKERS = "osD^vPX*"
SERIES = (ON_COLOUR, OFF_COLOUR, GREEN, PINK, SKY, TRANSFER_COLOUR, GREY)
HATCHES = ("//", "..", "", "\\\\", "xx", "++", "oo", "--", "||", "")
EDGE = {"edgecolor": INK, "linewidth": 0.8}


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a picture is drawn from."""

    records: Sequence[Record]
    rows: Sequence[LengthRow]

    def loads(self) -> Iterator[tuple[str, list[LengthRow]]]:
        """The rows of each load, shortest first, and the load in words where there are several."""
        found: dict[Setting, list[LengthRow]] = {}
        for row in self.rows:
            found.setdefault(row.setting._replace(length=0), []).append(row)
        for setting, rows in found.items():
            yield (str(setting) or "one at a time, no pause") if len(found) > 1 else "", rows


Draw = Callable[[Any, Drawing], None]


def draw_ttft(axes: Any, drawing: Drawing) -> None:
    """TTFT against prompt length: a line a leg with its quartiles, the ratio beside each pair."""
    for number, (load, rows) in enumerate(drawing.loads()):
        for leg, (colour, marker, dashes) in LEG_STYLE.items():
            look = {"color": colour, "marker": MARKERS[number % 8] if load else marker, "linestyle": dashes}
            _ttft_line(axes, rows, leg, f"{LEGENDS[leg]}{load and f', {load}'}", look)
        for row in rows:
            if row.speedup is not None:
                at, ends = row.prompt_tokens or row.length, (row.ttft_ms_on or 0, row.ttft_ms_off or 0)
                axes.plot((at, at), ends, color=GRID, linewidth=1, zorder=1)
                place = {"textcoords": "offset points", "va": "center", "fontsize": 9.5}
                axes.annotate(f"{row.speedup:.1f}×", (at, sum(ends) / 2), (4, 0), **place)
    axes.margins(x=0.08)
    axes.set(title="Time to first token", xlabel="prompt, tokens (median)", ylabel="TTFT, ms (median, quartiles)")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(_thousands)
    axes.yaxis.set_major_formatter(_thousands)


def _ttft_line(axes: Any, rows: Sequence[LengthRow], leg: str, label: str, style: dict[str, Any]) -> None:
    known = [row for row in rows if _value(row, f"ttft_ms_{leg}") is not None]
    if not known:
        return
    x, y = [row.prompt_tokens or row.length for row in known], [_value(row, f"ttft_ms_{leg}") for row in known]
    bounds = [_value(row, f"ttft_spread_{leg}") or (at, at) for row, at in zip(known, y, strict=True)]
    spread = [[max(0.0, at - low) for (low, _), at in zip(bounds, y, strict=True)],
              [max(0.0, high - at) for (_, high), at in zip(bounds, y, strict=True)]]  # fmt: skip
    axes.errorbar(x, y, yerr=spread, markersize=6, linewidth=2, elinewidth=1.2, capsize=3, label=label, **style)


def draw_prefill(axes: Any, drawing: Drawing) -> None:
    """The prefill leg by prompt length: OFF beside ON, ON split into computing and the KV transfer."""
    rows = drawing.rows
    places = range(len(rows))
    off = [row.prefill_ms_off or 0 for row in rows]
    compute = [row.compute_ms_on or 0 for row in rows]
    transfer = [row.transfer_ms_on or 0 for row in rows]
    left, right = [at - 0.2 for at in places], [at + 0.2 for at in places]
    bar = {"width": 0.36, **EDGE}
    axes.bar(left, off, color=OFF_COLOUR, label=LEGENDS[OFF], **bar)
    axes.bar(right, compute, color=ON_COLOUR, label="ON: compute and the rest", hatch="//", **bar)
    axes.bar(right, transfer, bottom=compute, color=TRANSFER_COLOUR, label="ON: KV transfer D→P", hatch="..", **bar)
    for at, row in enumerate(rows):
        for x, value in ((left[at], row.prefill_ms_off), (right[at], row.prefill_ms_on)):
            if value is not None:
                axes.annotate(f"{value:,.0f}", (x, value), (0, 3), textcoords="offset points", ha="center", fontsize=9)
    _name_rows(axes, drawing)
    axes.set(title="Prefill leg", xlabel="prompt, tokens (median)", ylabel="duration, ms (median)")
    axes.yaxis.set_major_formatter(_thousands)
    axes.margins(y=0.1)


def draw_split(axes: Any, drawing: Drawing) -> None:
    """Where the TTFT with reuse goes: one bar a length, one piece a part, beside the client's own TTFT."""
    rows = [(at, row.split_on) for at, row in enumerate(drawing.rows) if row.split_on is not None]
    below = dict.fromkeys((at for at, _ in rows), 0.0)
    colours = (TRANSFER_COLOUR, ON_COLOUR, GREY, SKY, GREEN, PINK, YELLOW, GREY, OFF_COLOUR, SKY)
    for (part, label), colour, hatch in zip(LABELS.items(), colours, HATCHES, strict=True):
        sizes = [max(0.0, one.parts[part]) for _, one in rows]
        places = [at for at, _ in rows]
        axes.bar(
            places, sizes, 0.55, bottom=[below[at] for at in places], label=label, color=colour, hatch=hatch, **EDGE
        )
        for at, size in zip(places, sizes, strict=True):
            below[at] += size
    axes.plot([at for at, _ in rows], [one.ttft for _, one in rows], "D", color=INK, label="TTFT at the client")
    _name_rows(axes, drawing)
    axes.set(title="Where the ON time goes", xlabel="prompt, tokens (median)", ylabel="ms (mean)")
    axes.yaxis.set_major_formatter(_thousands)


def draw_reuse(axes: Any, drawing: Drawing) -> None:
    """The share of each turn's prompt that D held and nobody computed, turn by turn."""
    shares: dict[Setting, dict[int, list[float]]] = {}
    for record in drawing.records:
        if record.leg == ON and record.ok and record.report and record.report.prompt:
            turns = shares.setdefault(record.setting, {})
            turns.setdefault(record.turn, []).append(100 * held(record) / record.report.prompt)
    for number, (setting, turns) in enumerate(sorted(shares.items())):
        x = sorted(turns)
        y = [sum(turns[turn]) / len(turns[turn]) for turn in x]
        style = {"color": SERIES[number % len(SERIES)], "marker": MARKERS[number % 8], "linewidth": 1.6}
        axes.plot(x, y, label=str(setting) or "all conversations", **style)
    axes.set(title="Reused share of the prompt, by turn", xlabel="turn", ylabel="% of the prompt's tokens (mean)")
    axes.set_ylim(-3, 103)
    axes.xaxis.get_major_locator().set_params(integer=True)


def draw_distribution(axes: Any, drawing: Drawing) -> None:
    """TTFT of every turn from the second on: a box a leg and row, whiskers to the extremes."""
    for leg, shift in ((OFF, -0.2), (ON, 0.2)):
        values = [[r.ttft_ms for r in later_turns(drawing.records, leg) if setting_of(r) == row.setting and r.ttft_ms]
                  for row in drawing.rows]  # fmt: skip
        places = [at for at, found in enumerate(values) if found]
        if not places:
            continue
        face = {"facecolor": LEG_STYLE[leg][0], "hatch": "//" if leg == ON else "", **EDGE}
        axes.boxplot([values[at] for at in places], positions=[at + shift for at in places], widths=0.34, whis=(0, 100),
                     patch_artist=True, boxprops=face, medianprops={"color": INK, "linewidth": 2}, manage_ticks=False,
                     whiskerprops={"color": INK}, capprops={"color": INK})  # fmt: skip
        axes.bar([places[0]], [math.nan], label=LEGENDS[leg], **face)  # what the legend shows
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _name_rows(axes, drawing)
    axes.set(title="TTFT of every turn", xlabel="prompt, tokens (median)", ylabel="TTFT, ms (log)")
    axes.yaxis.set_major_formatter(_thousands)


def draw_bandwidth(axes: Any, drawing: Drawing) -> None:
    """Each transfer's rate against its size."""
    for label, colour, marker, transfers in (
        ("D→P: read back", TRANSFER_COLOUR, "o", [r.read_back for r in drawing.records]),
        ("P→D: hand-off", GREEN, "^", [r.hand_off for r in drawing.records]),
    ):
        timed = [one for one in transfers if _timed(one)]
        x = [one.bytes / one.count / 1e6 for one in timed if one]
        y = [one.bytes / one.seconds / 1e6 for one in timed if one]
        if x:
            axes.plot(x, y, marker, color=colour, markeredgecolor=INK, markeredgewidth=0.5, label=label)
    axes.set(title="Transfer bandwidth against size", xlabel="MB a transfer", ylabel="MB/s")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_thousands)


def _timed(transfers: Transfers | None) -> bool:
    return transfers is not None and transfers.count > 0 and transfers.seconds > 0 and transfers.bytes > 0


def draw_decisions(axes: Any, drawing: Drawing) -> None:
    """How the ON turns were served, turn by turn."""
    served: dict[str, Counter[int]] = {}
    for record in drawing.records:
        if record.leg == ON and record.ok:
            report = record.report
            name = "no report" if report is None else f"{report.path}: {report.reason}".replace("_", " ")
            served.setdefault(name, Counter())[record.turn] += 1
    turns = sorted({turn for counts in served.values() for turn in counts})
    below = dict.fromkeys(turns, 0)
    for number, (name, counts) in enumerate(sorted(served.items())):
        look = {"color": SERIES[number % len(SERIES)], "hatch": HATCHES[number % len(HATCHES)], **EDGE}
        axes.bar(turns, [counts[turn] for turn in turns], 0.6, bottom=list(below.values()), label=name, **look)
        below = {turn: below[turn] + counts[turn] for turn in turns}
    axes.set(title="How the ON turns were served", xlabel="turn", ylabel="turns")
    axes.margins(y=0.15)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)


def _name_rows(axes: Any, drawing: Drawing) -> None:
    """One place a row, named by its prompts, and by its load where there are several."""
    names = [f"{row.prompt_tokens or row.length:,}{load and chr(10) + load}" for load, rows in drawing.loads()
             for row in rows]  # fmt: skip
    axes.set_xticks(range(len(names)), names)


def _value(row: LengthRow, name: str) -> Any:
    return getattr(row, name)


def _thousands(value: float, position: int) -> str:
    return f"{value:,.0f}"


PICTURES: dict[str, Draw] = {
    "ttft": draw_ttft,
    "prefill": draw_prefill,
    "split": draw_split,
    "reuse": draw_reuse,
    "distribution": draw_distribution,
    "bandwidth": draw_bandwidth,
    "decisions": draw_decisions,
}
ALWAYS = ("ttft", "prefill")


def drawing_of(records: Sequence[Record], cells: Sequence[Cell] = ()) -> Drawing:
    return Drawing(records, summary(records, cells))


def drawable(drawing: Drawing) -> list[str]:
    """The pictures that these records have something for; the published two always."""
    on = [record for record in drawing.records if record.leg == ON and record.ok]
    has = {
        "split": any(row.split_on for row in drawing.rows),
        "reuse": any(record.report for record in on),
        "distribution": any(later_turns(drawing.records, leg) for leg in (OFF, ON)),
        "bandwidth": any(_timed(r.read_back) or _timed(r.hand_off) for r in drawing.records),
        "decisions": any(record.report for record in on),
    }
    return [name for name in PICTURES if name in ALWAYS or has[name]]
