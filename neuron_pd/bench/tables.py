"""Figures as rows of text: the same cells for the terminal and for the page."""

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table

from neuron_pd.bench.figures import LengthRow, transfer_ms
from neuron_pd.bench.records import Cell, Record, Transfers
from neuron_pd.bench.split import LABELS
from neuron_pd.bench.spread import Interval

COLUMNS = (
    "prompt\ntokens",
    "TTFT\nOFF ms",
    "TTFT\nON ms",
    "TTFT\nratio",
    "prefill\nOFF ms",
    "prefill\nON ms",
    "transfer\nms",
    "transfer\nMB",
    "reused\ntokens",
)
SPREAD_COLUMNS = (
    "prompt\ntokens",
    "TTFT ratio\n95 % interval",
    "TTFT OFF\nquartiles ms",
    "TTFT ON\nquartiles ms",
    "ON mean\nms",
    "trans-\nfer",
    "com-\npute",
    "the\nrest",
    "sum /\nTTFT",
)
ABSENT = "–"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str, title: str | None = None) -> Table:
    """A table for the terminal; numbers to the right, the first column to the left where it holds words."""
    drawn = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
    )
    for column in columns:
        drawn.add_column(column, justify="right")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def for_terminal(rows: Sequence[LengthRow]) -> Group:
    """The figures and what they are worth, less the quartiles: 80 columns have no room for them. A pair of tables each
    load, named where there are several."""
    loads = list(dict.fromkeys(row.setting[1:] for row in rows))
    shown: list[Table] = []
    for load in loads:
        found = [row for row in rows if row.setting[1:] == load]
        name = named_load(found[0]) if len(loads) > 1 else None
        shown.append(table(*figures_cells(found), "medians over the turns from the second on", name))
        columns, lines = spread_cells(found)
        kept = [number for number, column in enumerate(columns) if "quartiles" not in column]
        narrow = [columns[number] for number in kept], [[line[number] for number in kept] for line in lines]
        shown.append(table(*narrow, "shares of the mean ON time, each measured by who spends it"))
    return Group(*shown)


def named_load(row: LengthRow) -> str:
    return str(row.setting._replace(length=0)) or "1 at a time"


def figures_cells(rows: Sequence[LengthRow]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of the figures; with a column for the load where there are several."""
    return _with_loads(rows, COLUMNS, [cells(row) for row in rows])


def spread_cells(rows: Sequence[LengthRow]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of what the figures are worth: intervals, quartiles, and the split of the ON time."""
    return _with_loads(rows, SPREAD_COLUMNS, [_spread(row) for row in rows])


def _with_loads(
    rows: Sequence[LengthRow], columns: Sequence[str], found: list[list[str]]
) -> tuple[list[str], list[list[str]]]:
    loads = [named_load(row) for row in rows]
    if len(set(loads)) < 2:
        return list(columns), found
    return ["load", *columns], [[load, *row] for load, row in zip(loads, found, strict=True)]


def cells(row: LengthRow) -> list[str]:
    """One row of the figures, in the order of `COLUMNS`."""
    return [
        whole(row.prompt_tokens or row.length),
        milliseconds(row.ttft_ms_off),
        milliseconds(row.ttft_ms_on),
        ABSENT if row.speedup is None else f"{row.speedup:.1f}×",
        milliseconds(row.prefill_ms_off),
        milliseconds(row.prefill_ms_on),
        milliseconds(row.transfer_ms_on),
        ABSENT if row.transfer_bytes_on is None else f"{row.transfer_bytes_on / 1e6:,.1f}",
        whole(row.reused_tokens),
    ]


def _spread(row: LengthRow) -> list[str]:
    split = row.split_on
    shares = [ABSENT] * 5
    if split is not None:
        parts = [f"{value / split.total:.0%}" for value in (split.transfer, split.compute, split.rest)]
        shares = [milliseconds(split.ttft), *parts, f"{1 + split.error:.0%}"]
    return [
        whole(row.prompt_tokens or row.length),
        ABSENT if row.gain is None else str(row.gain),
        _range(row.ttft_spread_off),
        _range(row.ttft_spread_on),
        *shares,
    ]


def parts_cells(rows: Sequence[LengthRow]) -> tuple[list[str], list[list[str]]]:
    """Names of the rows that have a split, and a line for each part of it."""
    known = [(row, row.split_on) for row in rows if row.split_on is not None]
    lines = [[label, *(milliseconds(one.parts[part]) for _, one in known)] for part, label in LABELS.items()]
    sums = [["sum", *(milliseconds(one.total) for _, one in known)]]
    sums += [["TTFT at the client", *(milliseconds(one.ttft) for _, one in known)]]
    loads = [str(row.setting._replace(length=0)) for row, _ in known]
    several = len(set(loads)) > 1
    prompts = [whole(row.prompt_tokens or row.length) for row, _ in known]
    names = [f"{prompt} {load if several else ''}".strip() for prompt, load in zip(prompts, loads, strict=True)]
    return names, [*lines, *sums] if known else []


TURN_COLUMNS = (
    "leg",
    "length",
    "turn",
    "prompt",
    "TTFT ms",
    "prefill ms",
    "path",
    "reason",
    "offered",
    "verified",
    "reused",
    "local",
    "D→P ms",
    "D→P MB",
    "P→D ms",
)


def turn_cells(record: Record) -> list[str]:
    """One turn as the page lists it, in the order of `TURN_COLUMNS`."""
    report = record.report
    counts = (
        [ABSENT] * 4
        if report is None
        else [whole(n) for n in (report.offered, report.verified, report.reused, report.local)]
    )
    return [
        record.leg.upper(),
        whole(record.length),
        str(record.turn) + (f" {record.note}" if record.note else ""),
        whole(record.prompt_tokens),
        milliseconds(record.ttft_ms),
        milliseconds(record.prefill_ms),
        report.path.replace("_", " ") if report else ABSENT,
        record.error or (report.reason.replace("_", " ") if report else ABSENT),
        *counts,
        milliseconds(transfer_ms(record)),
        ABSENT if record.read_back is None else f"{record.read_back.bytes / 1e6:,.1f}",
        milliseconds(None if record.hand_off is None else record.hand_off.mean_ms),
    ]


CELL_COLUMNS = (
    "leg",
    "setting",
    "requests",
    "failed",
    "seconds",
    "D→P reads",
    "MB each",
    "ms each",
    "MB/s",
    "P→D reads",
    "MB each",
    "ms each",
    "MB/s",
    "P reused tokens",
    "D leases ended",
)


def cell_cells(cell: Cell) -> list[str]:
    """What the engines counted in one cell, in the order of `CELL_COLUMNS`."""
    prefill, decode = cell.engines.get("prefill", {}), cell.engines.get("decode", {})
    ends = [f"{name.removeprefix('leases_')} {n:.0f}" for name, n in decode.items() if name.startswith("leases_")]
    return [
        cell.leg.upper(),
        str(cell.setting) or "own lengths",
        whole(cell.requests),
        whole(cell.failed),
        f"{cell.seconds:,.1f}",
        *_transfers(cell.read_back),
        *_transfers(cell.hand_off),
        whole(round(prefill["reused_tokens"])) if "reused_tokens" in prefill else ABSENT,
        ", ".join(ends) or ABSENT,
    ]


def _transfers(found: Transfers | None) -> list[str]:
    if found is None or not found.count:
        return [ABSENT if found is None else "0", ABSENT, ABSENT, ABSENT]
    each, rate = found.bytes / found.count / 1e6, found.bytes / found.seconds / 1e6 if found.seconds else 0.0
    return [whole(round(found.count)), f"{each:,.1f}", milliseconds(found.mean_ms), f"{rate:,.0f}"]


def whole(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def milliseconds(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def _range(interval: Interval | None) -> str:
    return ABSENT if interval is None else f"{milliseconds(interval.low)}–{milliseconds(interval.high)}"
