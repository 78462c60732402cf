from collections.abc import Callable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

from neuron_pd.errors import MissingDependency, UsageError
from neuron_pd.hosts.neuron_packages import (
    INSTALL,
    SDKS,
    Sdk,
    check_neuron_packages,
    check_package,
    check_plugin,
)

REAL = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: AWS Neuron\n"
# As the placeholder packages of the public index have it.
PLACEHOLDER = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Maintainer: Amazon Web Services, Inc.
Description-Content-Type: text/markdown

WRONG PACKAGE. Please install the package from Neuron Repository - pip.repos.neuron.amazonaws.com
"""


@pytest.fixture
def installed(tmp_path: Path) -> Callable[..., Callable[[str], Distribution]]:
    """Distributions as pip leaves them: a .dist-info directory with METADATA."""

    def install(metadata: str, **versions: str) -> Callable[[str], Distribution]:
        for name, version in versions.items():
            place = tmp_path / f"{name}-{version}.dist-info"
            place.mkdir()
            (place / "METADATA").write_text(metadata.format(name=name.replace("_", "-"), version=version))

        def find(name: str) -> Distribution:
            found = Distribution.discover(name=name, path=[str(tmp_path)])
            try:
                return next(iter(found))
            except StopIteration:
                raise PackageNotFoundError(name) from None

        return find

    return install


@pytest.mark.parametrize("name", ["torch-neuronx", "neuronx-distributed", "vllm-neuron"])
def test_a_placeholder_is_refused_with_the_line_that_helps(
    name: str, installed: Callable[..., Callable[[str], Distribution]]
) -> None:
    find = installed(PLACEHOLDER, **{name.replace("-", "_"): "1.0"})
    with pytest.raises(MissingDependency) as caught:
        check_package(name, find)
    assert str(caught.value) == (
        f"{name} 1.0 is the empty placeholder of the public index: run `pip uninstall -y {name}`, then `pip install "
        "--extra-index-url https://pip.repos.neuron.amazonaws.com 'neuron-pd[neuron]'`"
    )


def test_a_package_that_is_missing() -> None:
    with pytest.raises(MissingDependency, match=r"torch-neuronx is not installed here: run `pip install --extra-index"):
        check_package("torch-neuronx", distribution)


def test_each_stack_needs_its_own(installed: Callable[..., Callable[[str], Distribution]]) -> None:
    find = installed(REAL, torch_neuronx="2.9.0", vllm_neuron="0.29.0.1.2.0")
    check_neuron_packages("neuron", find=find)
    with pytest.raises(MissingDependency, match="neuronx-distributed is not installed here"):
        check_neuron_packages("neuron-nxd", find=find)


def test_a_plugin_of_an_older_vllm_goes_with_upstreams_connector_only(
    installed: Callable[..., Callable[[str], Distribution]],
) -> None:
    find = installed(REAL, torch_neuronx="2.9.0", vllm_neuron="0.24.0.1.1.0")
    check_neuron_packages("neuron", ours=False, find=find)
    with pytest.raises(UsageError, match=r"vllm-neuron 0.24.0.1.1.0 is not among vLLM 0.29 to 0.32.*SDK 2.33 \(plugin"):
        check_neuron_packages("neuron", find=find)


@pytest.mark.parametrize("version", ["0.29.0.1.2.0", "0.32.1"])
def test_a_plugin_of_a_tested_vllm(version: str) -> None:
    check_plugin(version)


@pytest.mark.parametrize("sdk", SDKS, ids=[sdk.release for sdk in SDKS])
def test_the_page_says_what_fits_together(sdk: Sdk) -> None:
    page = (Path(__file__).parents[2] / "docs" / "trainium.md").read_text()
    assert f"| {sdk.release} | {sdk.plugin} | {sdk.vllm} | {sdk.nixl}" in page


def test_the_line_is_the_one_that_pyproject_gives() -> None:
    assert INSTALL in (Path(__file__).parents[2] / "pyproject.toml").read_text()
