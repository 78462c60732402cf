"""Builds the stand-in for libnrt.so.1 (libnrt.c) with the system's C compiler, and runs code where it is found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("libnrt.c")


def build(place: Path, *defines: str) -> Path:
    """The library under its soname in `place`. Skips the test where there is no C compiler."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler (cc) to build the stand-in for libnrt with")
    library = place / "libnrt.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnrt.so.1", *(f"-D{name}" for name in defines)]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True)
    return library


def run(code: str, place: Path | None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python `code` in a process whose loader finds the library of `place`, or none."""
    variables = {**os.environ, **environment}
    variables.pop("LD_LIBRARY_PATH", None)
    if place is not None:
        variables["LD_LIBRARY_PATH"] = str(place)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
