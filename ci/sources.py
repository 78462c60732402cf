"""vLLM's releases from the package registry, to be read and never installed: kept in the user's cache, never committed.

The source release holds vLLM's own tests; the wheel holds the package as it is installed, for accelerators that this
machine need not have.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from neuron_pd.models.store import cache_dir

BUILD_TOOLS = ("setuptools-scm", "setuptools-rust")  # pip reads a source release's metadata, and that asks for these


class NotAvailable(Exception):
    """The registry does not hand out this release here. The message says what was asked for and what came back."""


def source_tests(version: str) -> Path:
    """A directory whose `tests` is that of vLLM's source release. NotAvailable."""
    return _unpacked(f"vllm-{version}-source", _source_release(version), _untar_tests)


def wheel_package(version: str) -> Path:
    """A directory whose `vllm` holds the Python files of vLLM's wheel. NotAvailable."""
    flags = ["--only-binary", ":all:"]
    return _unpacked(f"vllm-{version}-wheel", lambda to: _download(version, to, flags, {}), _unzip_package)


def _unpacked(name: str, fetch: Callable[[Path], Path], unpack: Callable[[Path, Path], None]) -> Path:
    place = cache_dir() / "sources" / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        archive, whole = fetch(Path(work)), Path(work) / "whole"
        whole.mkdir()
        unpack(archive, whole)
        if not place.is_dir():
            whole.rename(place)
    return place


def _source_release(version: str) -> Callable[[Path], Path]:
    def fetch(to: Path) -> Path:
        tools = to / "tools"
        _pip(["install", "--target", str(tools), *BUILD_TOOLS], {})
        variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(tools), os.environ.get("PYTHONPATH", "")])),
            "VLLM_TARGET_DEVICE": "empty",
            "VLLM_VERSION_OVERRIDE": version,
        }
        return _download(version, to, ["--no-binary", "vllm", "--no-build-isolation"], variables)

    return fetch


def _download(version: str, to: Path, flags: list[str], variables: dict[str, str]) -> Path:
    _pip(["download", "--no-deps", *flags, "--dest", str(to), f"vllm=={version}"], variables)
    return next(to.glob("vllm-*"))


def _pip(arguments: list[str], variables: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise NotAvailable(f"pip {' '.join(arguments[:2])} failed: {errors[-1] if errors else 'nothing was said'}")


def _untar_tests(archive: Path, to: Path) -> None:
    with tarfile.open(archive) as release:
        top = release.getnames()[0].partition("/")[0]
        wanted = [member for member in release if member.name.startswith(f"{top}/tests/")]
        release.extractall(to, wanted, filter="data")
    shutil.move(to / top / "tests", to / "tests")
    (to / top).rmdir()


def _unzip_package(archive: Path, to: Path) -> None:
    with zipfile.ZipFile(archive) as wheel:
        wheel.extractall(to, _python_files(wheel.namelist()))


def _python_files(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith("vllm/") and name.endswith(".py")]
