"""Records made readable: a table for the terminal, two pictures, and one page that needs nothing beside itself."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from neuron_pd.bench import figures, pictures
from neuron_pd.bench.figures import LengthRow
from neuron_pd.bench.records import Record
from neuron_pd.errors import MissingDependency, UsageError

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
ABSENT = "–"


def table(rows: Sequence[LengthRow]) -> Table:
    """The figures as a table for the terminal: medians over the turns from the second on."""
    drawn = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        caption="medians over the turns from the second on",
        caption_justify="left",
    )
    for column in COLUMNS:
        drawn.add_column(column, justify="right")
    for row in rows:
        drawn.add_row(*cells(row))
    return drawn


def cells(row: LengthRow) -> list[str]:
    """One row of the table, in the order of `COLUMNS`."""
    return [
        _whole(row.prompt_tokens or row.length),
        _milliseconds(row.ttft_ms_off),
        _milliseconds(row.ttft_ms_on),
        ABSENT if row.speedup is None else f"{row.speedup:.1f}×",
        _milliseconds(row.prefill_ms_off),
        _milliseconds(row.prefill_ms_on),
        _milliseconds(row.transfer_ms_on),
        ABSENT if row.transfer_bytes_on is None else f"{row.transfer_bytes_on / 1e6:,.1f}",
        _whole(row.reused_tokens),
    ]


def write_report(records: Sequence[Record], out_dir: Path, header: Mapping[str, Any] | None = None) -> Path:
    """Write `report.html`, `ttft.png` and `prefill.png` into `out_dir`; returns the page's path.

    UsageError when the folder cannot be written, MissingDependency without the `bench` extra.
    """
    page = _page(records, header or {})
    rows = figures.summary(records)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for name in pictures.PICTURES:
            pictures.png(name, rows, out_dir / f"{name}.png")
        path = out_dir / "report.html"
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the report to {out_dir}: {error.strerror}") from error
    return path


def _page(records: Sequence[Record], header: Mapping[str, Any]) -> str:
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise MissingDependency(f"the report needs {error.name}: pip install 'neuron-pd[bench]'") from error
    rows = figures.summary(records)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files("neuron_pd.bench") / "report.html.j2").read_text(encoding="utf-8"))
    equal, total = figures.answers(records)
    return template.render(
        header=header,
        facts=facts(header),
        columns=[column.replace("\n", " ") for column in COLUMNS],
        rows=[cells(row) for row in rows],
        longest=next((row for row in reversed(rows) if row.speedup), None),
        equal=equal,
        total=total,
        warnings=figures.warnings(records),
        decisions=figures.decisions(records).most_common(),
        turns=[turn_cells(record) for record in records],
        turn_columns=TURN_COLUMNS,
        # The pictures are drawn here from numbers; every label in them is this package's own.
        pictures={name: Markup(pictures.svg(name, rows)) for name in pictures.PICTURES},
    )


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
        else [_whole(n) for n in (report.offered, report.verified, report.reused, report.local)]
    )
    return [
        record.leg.upper(),
        _whole(record.length),
        str(record.turn),
        _whole(record.prompt_tokens),
        _milliseconds(record.ttft_ms),
        _milliseconds(record.prefill_ms),
        report.path.replace("_", " ") if report else ABSENT,
        record.error or (report.reason.replace("_", " ") if report else ABSENT),
        *counts,
        _milliseconds(figures.transfer_ms(record)),
        ABSENT if record.read_back is None else f"{record.read_back.bytes / 1e6:,.1f}",
        _milliseconds(None if record.hand_off is None else record.hand_off.mean_ms),
    ]


def facts(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader needs to judge the figures and make them again, as names and values."""
    plan, host, model = (_object(header.get(name)) for name in ("plan", "host", "model"))
    found = [
        ("command", header.get("command")),
        ("started", header.get("started_at")),
        ("model", model.get("name")),
        ("plan", _listed(plan, ("turns", "user_tokens", "reply_tokens", "repeats", "seed"))),
        *((f"{role} engine", _engine(_object(header.get("engines")).get(role))) for role in ("prefill", "decode")),
        ("host", _host(host)),
        ("neuron-pd", header.get("neuron_pd")),
        ("Python", header.get("python")),
    ]
    return [(name, str(value)) for name, value in found if value]


def _engine(info: Any) -> str:
    names = {
        "vllm": "vLLM",
        "nixl": "NIXL",
        "torch": "torch",
        "accelerator": "on",
        "retention": "retention",
        "block_size": "block size",
    }
    body = _object(info)
    return ", ".join(f"{label} {body[name]}" for name, label in names.items() if body.get(name))


def _host(host: Mapping[str, Any]) -> str:
    if not host:
        return ""
    memory = host.get("memory_bytes")
    size = f", {memory / 2**30:.0f} GiB" if isinstance(memory, int) else ""
    return f"{host.get('cpu')}, {host.get('cores')} cores{size}, {host.get('system')}"


def _listed(body: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {body[name]}" for name in names if name in body)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def _milliseconds(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
