from pathlib import Path

import pytest

from ci.docs.environment import variables

SOURCE = """
import os
NAME = "BY_CONSTANT"
A = os.environ.get("BY_GET")
B = os.environ["BY_SUBSCRIPT"]
def read(environ=None):
    environ = os.environ if environ is None else environ
    return environ.get(NAME), (os.environ if environ is None else environ).get("IN_TURN", ""), {}.get("NOT")
"""


def test_every_way_of_looking_one_up(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text(SOURCE)
    assert variables(tmp_path) == {"BY_GET", "BY_SUBSCRIPT", "BY_CONSTANT", "IN_TURN"}


def test_a_name_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os\nos.environ.get(MADE_ELSEWHERE)\n")
    with pytest.raises(KeyError, match="MADE_ELSEWHERE"):
        variables(tmp_path)
