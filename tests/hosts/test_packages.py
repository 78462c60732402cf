import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_pd.errors import MissingDependency, UsageError
from neuron_pd.hosts import packages


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1rc1+cpu", None])
def test_a_tested_vllm(version: str | None) -> None:
    packages.check_vllm_version(version)


@pytest.mark.parametrize("version", ["0.28.1", "0.33.0", "1.0"])
def test_a_vllm_that_was_never_tested(version: str) -> None:
    with pytest.raises(UsageError, match=rf"tested on vLLM .* and this is {version}: run `pip"):
        packages.check_vllm_version(version)


@pytest.mark.parametrize(("package", "title"), [("vllm", "vLLM"), ("nixl", "NIXL")])
def test_a_package_that_is_missing(package: str, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packages.is_installed("torch"):
        pytest.skip("torch is asked for after both")
    monkeypatch.setitem(sys.modules, package, None)
    for accelerator in ("cpu", "cuda"):
        install = rf"`pip install 'neuron-pd\[{accelerator}\]'`"
        with pytest.raises(MissingDependency, match=f"{title} is not installed here: run {install}"):
            packages.check_engine_packages(accelerator)


def test_a_torchvision_that_does_not_match_torch(tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    code = "from neuron_pd.hosts.packages import check_companions; check_companions()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (
        "MissingDependency: torchvision does not match this torch: run `pip uninstall -y torchvision" in result.stderr
    )
