"""Programs that may be missing, fail or hang: what became of each."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE_ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that was run. `status` is None where it did not end in time and was killed."""

    status: int | None
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The last line that it wrote."""
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"


def run(argv: Sequence[str], environ: Mapping[str, str], seconds: float) -> Ran | None:
    """Run a program with this environment; None where there is none of that name on its PATH.

    It has a process group of its own, which is killed when it takes longer than `seconds`.
    """
    program = shutil.which(argv[0], path=environ.get("PATH", os.defpath))
    if program is None:
        return None
    process = subprocess.Popen(
        [program, *argv[1:]],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
        return Ran(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=1)
        return Ran(None, out, err)


def run_python(code: str, environ: Mapping[str, str], seconds: float) -> Ran:
    """Run code in a Python of its own that finds this neuron_pd, and nothing in the working directory."""
    path = os.pathsep.join(filter(None, (environ.get("PYTHONPATH", ""), str(PACKAGE_ROOT))))
    ran = run([sys.executable, "-P", "-c", code], {**environ, "PYTHONPATH": path}, seconds)
    assert ran is not None
    return ran
