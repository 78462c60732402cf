import os
import time
from pathlib import Path

import pytest

from neuron_pd.doctor.commands import run, run_python
from neuron_pd.doctor.site import Site

ENVIRON = dict(os.environ)


def test_what_became_of_it() -> None:
    ran = run(["sh", "-c", "echo out; echo err >&2; exit 3"], ENVIRON, 10)
    assert ran is not None
    assert (ran.status, ran.out, ran.err, ran.last_words) == (3, "out\n", "err\n", "err")
    assert run(["no-such-program"], ENVIRON, 10) is None


def test_what_hangs_is_killed_with_its_children() -> None:
    began = time.monotonic()
    ran = run(["sh", "-c", "echo begun; sleep 60 & sleep 60"], ENVIRON, 0.3)
    assert ran is not None
    assert (ran.status, ran.out) == (None, "begun\n")
    assert time.monotonic() - began < 5


def test_python_finds_this_package_and_nothing_where_it_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "neuron_pd.py").write_text("raise ImportError('the working directory')")
    monkeypatch.chdir(tmp_path)
    ran = run_python("import neuron_pd, sys; print('' in sys.path)", ENVIRON, 30)
    assert (ran.status, ran.out) == (0, "False\n"), ran.err


def test_the_same_code_runs_once(tmp_path: Path) -> None:
    site = Site(seconds=30)
    code = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    for _ in range(3):
        assert site.python(code).status == 0
    assert (tmp_path / "runs").read_text() == "x"
