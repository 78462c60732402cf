"""Records made readable: pictures, and one page that needs nothing beside itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuron_pd.bench import figures, pictures, tables
from neuron_pd.bench.compare import Comparison
from neuron_pd.bench.drawings import drawable, drawing_of
from neuron_pd.bench.records import Run
from neuron_pd.bench.tables import CELL_COLUMNS, TURN_COLUMNS, cell_cells, milliseconds, turn_cells
from neuron_pd.errors import MissingDependency, UsageError

CAPTIONS = {
    "ttft": "Time to first token against prompt length, reuse off and on; the values are in the table below",
    "prefill": "Duration of the prefill leg by prompt length, reuse off beside on, the latter split into KV transfer"
    " and the rest; the values are in the table below",
    "split": "The mean time to first token with reuse by what it is spent on; the values are in the table below",
    "reuse": "The share of each turn's prompt that the decode engine held and nobody computed, by turn",
    "distribution": "Quartiles and extremes of the time to first token, reuse off beside on, by prompt length",
    "bandwidth": "Megabytes a second of each transfer against its size, in both directions",
    "decisions": "How many turns with reuse were read back or recomputed and why, by turn",
}


def write_report(run: Run, out_dir: Path, notes: Sequence[str] = ()) -> Path:
    """Write `report.html`, and each picture as PNG and SVG, into `out_dir`; returns the page's path.

    `notes` stand beside the warnings. UsageError when the folder cannot be written, MissingDependency without the
    `bench` extra.
    """
    out_dir = _folder(out_dir)
    drawing = drawing_of(run.records, run.cells)
    drawn = [pictures.draw(name, drawing) for name in drawable(drawing)]
    for picture in drawn:
        picture.save(out_dir)
    text = page(run, {picture.name: picture.element() for picture in drawn}, notes)
    return _written(out_dir / "report.html", text)


def write_comparison(found: Sequence[Comparison], out_dir: Path, runs: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write `compare.html` into `out_dir`; `runs` holds the two runs' headers by name. As `write_report`."""
    columns, rows = comparison_cells(found)
    text = _render("compare.html.j2", columns=columns, rows=rows, runs=[(n, facts(h)) for n, h in runs.items()])
    return _written(_folder(out_dir) / "compare.html", text)


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write the report to {path}: {error.strerror}") from error
    return path


def _written(path: Path, text: str) -> Path:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return path


def comparison_cells(found: Sequence[Comparison]) -> tuple[list[str], list[list[str]]]:
    rows = [
        [str(one.setting), one.leg.upper(), milliseconds(one.a_ms), milliseconds(one.b_ms), str(one.ratio)]
        for one in found
    ]
    return ["setting", "leg", "TTFT A ms", "TTFT B ms", "A / B"], rows


def page(run: Run, drawn: Mapping[str, str] | None = None, notes: Sequence[str] = ()) -> str:
    """The page's text; `drawn` holds SVG elements by the pictures' names."""
    records, header = run.records, run.header
    rows = figures.summary(records, run.cells)
    equal, total = figures.answers(records)
    columns, shown = tables.figures_cells(rows)
    spread_columns, spread = tables.spread_cells(rows)
    part_rows, parts = tables.parts_cells(rows)
    return _render(
        "report.html.j2",
        header=header,
        facts=facts(header),
        columns=_one_line(columns),
        rows=shown,
        spread_columns=_one_line(spread_columns),
        spread=spread,
        part_rows=part_rows,
        parts=parts,
        longest=next((row for row in reversed(rows) if row.speedup), None),
        equal=equal,
        total=total,
        warnings=[*notes, *figures.warnings(records)],
        decisions=figures.decisions(records).most_common(),
        turns=[turn_cells(record) for record in records],
        turn_columns=TURN_COLUMNS,
        cells=[cell_cells(cell) for cell in run.cells],
        cell_columns=CELL_COLUMNS,
        captions=CAPTIONS,
        drawn=drawn or {},
    )


def _one_line(columns: Sequence[str]) -> list[str]:
    return [column.replace("-\n", "").replace("\n", " ") for column in columns]


def _render(template: str, drawn: Mapping[str, str] | None = None, **values: Any) -> str:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise MissingDependency(f"the report needs {error.name}: pip install 'neuron-pd[bench]'") from error
    environment = Environment(
        loader=PackageLoader("neuron_pd.bench"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The pictures are drawn here from numbers; every label in them is this package's own or a setting's.
    safe = {name: Markup(text) for name, text in (drawn or {}).items()}
    return environment.get_template(template).render(pictures=safe, **values)


PLAN_FACTS = (
    "workload",
    "turns",
    "user_tokens",
    "reply_tokens",
    "repeats",
    "concurrency",
    "rates",
    "think",
    "cache_bust",
    "seed",
)


def facts(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader needs to judge the figures and make them again, as names and values."""
    plan, host, model = (_object(header.get(name)) for name in ("plan", "host", "model"))
    found = [
        ("command", header.get("command")),
        ("started", header.get("started_at")),
        ("model", model.get("name")),
        ("plan", _listed(plan, PLAN_FACTS)),
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
    known = [(name.replace("_", " "), body[name]) for name in names if body.get(name) not in (None, [], ())]
    return ", ".join(f"{name} {' '.join(map(str, v)) if isinstance(v, list | tuple) else v}" for name, v in known)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
