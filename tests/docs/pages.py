"""The pages of the project, and what in them can be checked: links, headings, shell commands."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4,}.*\n)+", re.MULTILINE)
PROGRAM = re.compile(r"^(neuron-pd|python -m (neuron_pd|ci)\S*|make|curl)(\s|$)")
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Command:
    """A line of shell that a page tells a person to run, lines that it goes on in put together."""

    page: str
    text: str

    @property
    def bare(self) -> str:
        """Without the comment behind it."""
        return re.sub(r"\s+# .*$", "", self.text).rstrip()

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def named(path: Path) -> str:
    """A page's name as other files say it: README.md, docs/proxy.md."""
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> list[str]:
    """The page's blocks of shell."""
    return [found["text"] for found in FENCE.finditer(path.read_text()) if found["language"] == "sh"]


def commands(path: Path) -> Iterator[Command]:
    """Every line of its blocks of shell, and indented lines that begin with a program of ours."""
    for block in blocks(path):
        yield from (Command(named(path), line) for line in _lines(block))
    for found in INDENTED.finditer(prose(path)):
        lines = _lines(re.sub(r"^ {4}", "", found[0], flags=re.MULTILINE))
        yield from (Command(named(path), line) for line in lines if PROGRAM.match(line))


def prose(path: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", path.read_text())


def _lines(block: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", block)
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def links(path: Path) -> list[str]:
    """Where its links go."""
    return LINK.findall(re.sub(r"`[^`\n]*`", "", prose(path)))


def anchors(path: Path) -> set[str]:
    """Its headings as GitHub names them; a heading that is there again has -1, -2 … behind it."""
    found: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(prose(path)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        names.add(f"{name}-{count}" if count else name)
    return names
