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


def test_what_is_written_by_hand_stays(place: Path) -> None:
    made = pages(place)["profiles.md"]
    assert made.startswith(f"# Profiles\n\nBy hand.\n\n{SCHEMA}")
    assert "that is old" not in made


def test_drift_is_named_and_written_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.docs.__main__.pages", lambda place: {"a.md": "new\n", "b.md": "same\n"})
    (tmp_path / "b.md").write_text("same\n")
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == "docs/a.md is not what the program makes: run `make docs`\n"
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    assert (tmp_path / "a.md").read_text() == "new\n"
