"""`python -m ci.docs [--check]`: write the pages that are made from the program; --check says which would change."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ci.docs import cli, configuration, doctor, metrics
from ci.matrix.legs import ROOT
from neuron_pd.profiles.reference import reference

PLACE = ROOT / "docs"
SCHEMA = "### An instance "  # where the schema begins on the profiles' page


def pages(place: Path = PLACE) -> dict[str, str]:
    """Every page's text, by file name."""
    written = (place / "profiles.md").read_text().partition(SCHEMA)[0]
    return {
        "cli.md": cli.page(),
        "configuration.md": configuration.page(),
        "doctor.md": doctor.page(),
        "metrics.md": metrics.page(),
        "profiles.md": written + reference(),
    }


def drift(place: Path = PLACE) -> list[str]:
    """The pages that are not what the program makes."""
    there = {path.name: path.read_text() for path in place.glob("*.md")}
    return [name for name, text in pages(place).items() if there.get(name) != text]


def main(argv: Sequence[str] | None = None, place: Path = PLACE) -> int:
    """Write the pages, or check them; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ci.docs", description="Make pages of docs/ from the program.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 when something would change")
    if parser.parse_args(argv).check:
        found = drift(place)
        sys.stderr.writelines(f"docs/{name} is not what the program makes: run `make docs`\n" for name in found)
        return 1 if found else 0
    for name, text in pages(place).items():
        (place / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
