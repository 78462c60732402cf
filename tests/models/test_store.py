import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.models import store
from neuron_pd.models.store import MANIFEST, Recipe, made

MAKER = """
import sys, time
from pathlib import Path
from neuron_pd.models.store import Recipe, made

def make(directory, say):
    (directory / "weights").write_bytes(b"half")
    print("making", flush=True)
    time.sleep(float(sys.argv[2]))
    (directory / "weights").write_bytes(b"whole")
    with open(sys.argv[3], "a") as made_by:
        made_by.write("x")

print(made(Recipe("toy", 1, 1, make), Path(sys.argv[1]), print), flush=True)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def toy(text: str = "whole", version: int = 1) -> Recipe:
    return Recipe("toy", version, 1, lambda directory, say: _write(directory, text))


def _write(directory: Path, text: str) -> None:
    (directory / "weights").write_text(text)
    (directory / "sub").mkdir()
    (directory / "sub" / "config").write_text("{}")


def never(directory: Path, say: object) -> None:
    raise AssertionError("made again")


def test_a_model_is_made_once(own_cache: Path) -> None:
    directory = made(toy(), None, print)
    assert directory == own_cache / "neuron-pd" / "models" / "toy-1"
    assert json.loads((directory / MANIFEST).read_text())["files"] == {"sub/config": 2, "weights": 5}
    assert made(Recipe("toy", 1, 1, never), None, print) == directory
    assert [entry.name for entry in directory.parent.iterdir()] == ["toy-1"]


def test_a_model_that_lost_something_is_made_again() -> None:
    directory = made(toy(), None, print)
    (directory / "weights").write_text("wh")
    assert (made(toy(), None, print) / "weights").read_text() == "whole"


def test_another_version_is_another_model() -> None:
    old, new = made(toy(), None, print), made(toy("newer", 2), None, print)
    assert (old / "weights").read_text() == "whole"
    assert (new / "weights").read_text() == "newer"


def test_what_a_person_keeps_in_out_is_not_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert made(toy(), out, print) == out
    assert (made(toy("newer", 2), out, print) / "weights").read_text() == "newer"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something that is not the toy model: choose an empty --out"):
        made(toy(), other, print)
    with pytest.raises(UsageError, match="is not a directory"):
        made(toy(), other / "thesis.txt", print)
    with pytest.raises(UsageError, match="choose another --out"):
        made(toy(), other / "thesis.txt" / "model", print)
    assert (other / "thesis.txt").read_text() == "mine"


def test_a_recipe_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path, say: object) -> None:
        (directory / "weights").write_text("half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        made(Recipe("toy", 1, 1, fail), tmp_path / "out", print)
    assert not [entry for entry in tmp_path.iterdir() if "out" in entry.name]


def test_too_little_disk(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"too little disk for toy: it needs \d+ MiB"):
        made(Recipe("toy", 1, 2**60, never), tmp_path / "out", print)


def maker(out: Path, seconds: float, log: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", MAKER, str(out), str(seconds), str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_maker_leaves_nothing_that_is_served(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    with maker(out, 600, log) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "making\n"
        os.kill(first.pid, signal.SIGKILL)
    assert not out.exists()
    with maker(out, 0, log) as second:
        assert second.wait() == 0
    assert (out / "weights").read_text() == "whole"
    # What the killed one left beside it went, too.
    assert {entry.name for entry in tmp_path.iterdir()} == {"out", "log", "cache"}


def test_makers_at_once_make_it_once(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    makers = [maker(out, 0.3, log) for _ in range(4)]
    said = [one.communicate()[0] for one in makers]
    assert all(text.endswith(f"{out}\n") for text in said)
    assert log.read_text() == "x"


def test_a_relative_cache_home_is_ignored() -> None:
    assert store.cache_dir({"XDG_CACHE_HOME": "here"}) == Path.home() / ".cache" / "neuron-pd"
