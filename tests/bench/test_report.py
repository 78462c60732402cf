import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from neuron_pd.bench import figures, pictures
from neuron_pd.bench.compare import compare
from neuron_pd.bench.drawings import drawing_of
from neuron_pd.bench.records import Cell, Record, Run, Setting, Transfers
from neuron_pd.bench.report import page as report_page
from neuron_pd.bench.report import write_comparison, write_report
from neuron_pd.bench.tables import cells, for_terminal
from neuron_pd.errors import UsageError

from .making import both_legs, record, report

HEADER = {
    "neuron_pd": "0.1.0",
    "python": "3.11.7",
    "started_at": "2026-01-02T03:04:05+00:00",
    "command": "neuron-pd bench sweep --model '<script>alert(1)</script>'",
    "plan": {"turns": 3, "user_tokens": 150, "reply_tokens": 32, "repeats": 1, "seed": 0},
    "engines": {"prefill": {"vllm": "0.32.0", "nixl": "1.5.1", "torch": "2.13.0"}, "decode": None},
    "host": {"cpu": "A processor", "cores": 2, "memory_bytes": 24 * 2**30, "system": "Linux 6"},
    "model": {"name": "tiny"},
}
CELL = Cell(
    "on",
    Setting(1024),
    0,
    3,
    0,
    12.5,
    Transfers(2, 0.04, 1_848_000),
    None,
    {"prefill": {"reused_tokens": 1848}, "decode": {"leases_read": 2, "acquires_leased": 2}},
)
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Elements, attributes, text and table cells of a page; fails on tags that do not pair up."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tables: list[list[list[str]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


def text_of(records: list[Record], header: dict[str, object] = HEADER) -> tuple[str, Page]:
    """The page without its pictures."""
    text = report_page(Run(dict(header), records))
    return text, Page(text)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole report of `both_legs`, as it is written."""
    return write_report(Run(HEADER, both_legs(), [CELL]), tmp_path_factory.mktemp("report") / "deep" / "out").parent


def written(out: Path) -> tuple[str, Page]:
    text = (out / "report.html").read_text(encoding="utf-8")
    return text, Page(text)


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[-8:-4] == b"IEND"
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_page_and_pictures(out: Path) -> None:
    text, page = written(out)
    names = ("bandwidth", "decisions", "distribution", "prefill", "reuse", "ttft")
    files = {f"{name}.{kind}" for name in names for kind in ("png", "svg")} | {"report.html"}
    assert {file.name for file in out.iterdir()} == files
    for name in names:
        width, height = png_size(out / f"{name}.png")
        assert 1000 <= width <= 1400
        assert 600 <= height <= 900
    assert page.tags.count("svg") == 6
    shown, spread, counted, turns = page.tables
    assert counted[1][:9] == ["ON", "1,024 tokens", "3", "0", "12.5", "2", "0.9", "20.0", "46"]
    assert counted[1][9:] == ["–", "–", "–", "–", "1,848", "read 2"]
    assert spread[1][:4] == ["1,524", "8.0× (8.0–8.0)", "2,250–2,750", "281–344"]
    assert shown[1] == ["1,524", "2,500", "312", "8.0×", "2,000", "250", "20.0", "0.9", "924"]
    assert len(turns) == 1 + 12
    assert turns[5][:8] == ["ON", "1,024", "2", "1,424", "250", "200", "read back", "verified"]
    assert turns[5][8:] == ["924", "924", "924", "0", "20.0", "0.9", "3.0"]
    assert "6 of 6 answers with reuse equal the answers without it." in page.words
    assert "read back: verified — 4 turns" in page.words
    assert "neuron-pd bench sweep" in page.words
    assert "vLLM 0.32.0, NIXL 1.5.1, torch 2.13.0" in page.words
    assert 'class="warnings"' not in text


def test_the_page_needs_nothing_beside_itself(out: Path) -> None:
    text, page = written(out)
    links = [
        value or "" for name, value in page.attributes if name in ("src", "href", "xlink:href", "srcset", "action")
    ]
    assert all(link.startswith("#") for link in links)
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert "url(http" not in text
    assert "@import" not in text
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links} <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_dark_mode_and_print_recolour_the_pictures(out: Path) -> None:
    text, _ = written(out)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    drawing = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not [colour for colour in pictures.PAGE_COLOURS if colour.lower() in drawing.lower()]
    used = set(re.findall(r"var\((--\w+)\)", drawing))
    assert {"--off", "--on", "--transfer", "--ink", "--grid"} <= used
    style = text[text.index("<style>") : text.index("</style>")]
    for variable in pictures.PAGE_COLOURS.values():
        assert style.count(f"{variable}:") == 3  # light, dark, print


def test_everything_from_outside_is_escaped() -> None:
    hostile = record(error="<img src=x onerror=alert(1)>", report=report(0))
    text, page = text_of([*both_legs(), hostile], {**HEADER, "model": {"name": "</dd><b>bold"}})
    assert {"script", "img", "b"}.isdisjoint(page.tags)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<img src=x onerror=alert(1)>" in page.words


@pytest.mark.parametrize(
    "records",
    [
        [made for made in both_legs() if made.leg == "on"],
        [made for made in both_legs() if made.leg == "off"],
        [made for made in both_legs() if made.turn == 1],
        [record(error="broke", first_token=None, server_timing={}, report=None, prompt_tokens=None)],
        [record(ttft=0.0, report=None, server_timing={})],
    ],
    ids=["on only", "off only", "first turns only", "all failed", "no server side"],
)
def test_half_a_run_makes_a_page_too(tmp_path: Path, records: list[Record]) -> None:
    page = Page(write_report(Run({}, records), tmp_path).read_text())
    assert "One leg only: no answers to compare." in page.words or "answers with reuse" in page.words
    assert png_size(tmp_path / "ttft.png") == png_size(tmp_path / "prefill.png")


def test_warnings_stand_on_the_page() -> None:
    _, page = text_of([*both_legs(), record(turn=4, error="broke")])
    assert "1 of 13 requests failed; the figures are over the others." in page.words


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    console = Console(width=80, record=True, force_terminal=False)
    long_row = record("off", 131_072, ttft=99.0), record("on", 131_072, ttft=9.0, report=report(131_000))
    with console.capture() as capture:
        rows = figures.summary([*both_legs(), *long_row])
        console.print(for_terminal(rows))
    printed = capture.get()
    assert "…" not in printed
    for cell in cells(figures.summary(both_legs())[0]):
        assert cell in printed


def test_several_loads_have_tables_of_their_own() -> None:
    console = Console(width=80, force_terminal=False)
    records = [replace(made, link=link) for made in both_legs() for link in ("200mbit", "1gbit")]
    with console.capture() as capture:
        console.print(for_terminal(figures.summary(records)))
    printed = capture.get()
    assert printed.index("200mbit") < printed.index("1gbit")
    assert printed.count("prompt") == 4
    assert "…" not in printed


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the report to"):
        write_report(Run({}, both_legs()), tmp_path / "file" / "out")


def test_several_loads_are_named_in_tables_and_pictures() -> None:
    records = [replace(made, think=think) for made in both_legs() for think in (0.0, 30.0)]
    _, page = text_of(records)
    assert [row[:2] for row in page.tables[0][1:]] == [
        ["1 at a time", "1,524"],
        ["1 at a time", "2,548"],
        ["think 30 s", "1,524"],
        ["think 30 s", "2,548"],
    ]
    assert "think 30 s" in pictures.draw("ttft", drawing_of(records)).svg


def test_notes_stand_beside_the_warnings() -> None:
    page = Page(report_page(Run({}, both_legs()), notes=["something is missing"]))
    assert "something is missing" in page.words


def test_two_runs_on_one_page(tmp_path: Path) -> None:
    found = compare(both_legs(), both_legs())
    page = Page(write_comparison(found, tmp_path, {"A: <a>": HEADER, "B: b": {}}).read_text())
    assert page.tables[0][1] == ["1,024 tokens", "OFF", "2,500", "2,500", "1.0× (1.0–1.0)"]
    assert "A: <a>" in page.words
