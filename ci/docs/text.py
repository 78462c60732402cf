"""Markdown out of the program's own words."""

from collections.abc import Iterable, Sequence
from pathlib import Path

TEMPLATES = Path(__file__).with_name("templates")


def template(name: str) -> str:
    """A page with fields in braces for what is made; what is made ends its last line itself."""
    return (TEMPLATES / f"{name}.md").read_text().removesuffix("\n")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold anything but keep to one line."""
    lines = [_row(head), "|" + "---|" * len(head), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
