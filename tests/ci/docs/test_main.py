from pathlib import Path

import pytest

from ci.docs.__main__ import PLACE, SCHEMA, drift, main, pages


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A docs/ with the one page of which a part is written by hand."""
    (tmp_path / "profiles.md").write_text(f"# Profiles\n\nBy hand.\n\n{SCHEMA}that is old\n")
    return tmp_path


def test_the_pages_are_what_the_program_makes() -> None:
    assert drift(PLACE) == [], "run: make docs"


def test_drift_is_named_and_written_away(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], place) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"docs/{name} is not what the program makes: run `make docs`" for name in pages(place)
    ]
    assert main([], place) == 0
    assert main(["--check"], place) == 0
    assert (place / "profiles.md").read_text().startswith("# Profiles\n\nBy hand.\n")
