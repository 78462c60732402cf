"""The Neuron packages: which releases fit together, where they come from, and the empty ones of the same names.

Nothing of them is imported here, so that this runs on any machine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Final

from neuron_pd.core.versions import is_tested, tested_releases
from neuron_pd.errors import MissingDependency, UsageError

INDEX: Final = "https://pip.repos.neuron.amazonaws.com"
INSTALL: Final = f"pip install --extra-index-url {INDEX} 'neuron-pd[neuron]'"
NATIVE: Final = ("torch-neuronx", "vllm-neuron")
NXD: Final = ("torch-neuronx", "neuronx-distributed")
# What the placeholders on the public index say of themselves.
PLACEHOLDER: Final = "WRONG PACKAGE"

Find = Callable[[str], Distribution]


@dataclass(frozen=True, slots=True)
class Sdk:
    """One release of the Neuron SDK, and the vLLM that its plugin goes with."""

    release: str
    plugin: str
    vllm: str
    nixl: str = ""


# Release notes of the SDK and of vLLM Neuron; the NIXL release where they name one.
SDKS: Final = (
    Sdk("2.31", "0.21.0", "0.21.0"),
    Sdk("2.32", "0.24.0.1.1.0", "0.24.0", "1.3.2"),
    Sdk("2.33", "0.29.0.1.2.0", "0.29.0"),
)


def check_neuron_packages(accelerator: str, ours: bool = True, find: Find = distribution) -> None:
    """MissingDependency, with the line that installs them, for a package that is missing or is a placeholder.

    UsageError for a plugin whose vLLM our connector does not know; upstream's connector goes with any.
    """
    for name in NXD if accelerator == "neuron-nxd" else NATIVE:
        check_package(name, find)
    if ours and accelerator == "neuron":
        check_plugin(find("vllm-neuron").version)


def check_package(name: str, find: Find = distribution) -> None:
    """MissingDependency when the package is not installed, or is the placeholder of its name."""
    try:
        found = find(name)
    except PackageNotFoundError as error:
        raise MissingDependency(f"{name} is not installed here: run `{INSTALL}`") from error
    if is_placeholder(found):
        raise MissingDependency(
            f"{name} {found.version} is the empty placeholder of the public index: run `pip uninstall -y {name}`, then "
            f"`{INSTALL}`"
        )


def is_placeholder(found: Distribution) -> bool:
    """True for a package whose own description says that it is the wrong one."""
    return PLACEHOLDER in (found.read_text("METADATA") or found.read_text("PKG-INFO") or "")


def check_plugin(version: str) -> None:
    """UsageError when the plugin goes with a vLLM outside the range that our connector is tested on."""
    if is_tested(version):
        return
    fitting = [sdk for sdk in SDKS if is_tested(sdk.vllm)]
    named = " or ".join(f"{sdk.release} (plugin {sdk.plugin})" for sdk in fitting)
    raise UsageError(
        f"vllm-neuron {version} is not among vLLM {tested_releases()}, which our connector knows: install Neuron SDK "
        f"{named}, or use --connector upstream"
    )
