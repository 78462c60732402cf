import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from ci.matrix.legs import MATRIX, ROOT, legs
from neuron_pd.core.versions import TESTED_VLLM
from neuron_pd.profiles import Profiles

ROW = {"accelerator": ["cpu"], "vllm": ["0.1"], "backend": ["ucx"], "retention": ["lease", "pin"], "tests": ["tests"]}
CPU = {"runs-on": "somewhere", "releases": {"0.1": "vllm==0.1"}, "backends": {"ucx": {"nixl": "nixl"}}}


def matrix(place: Path, *rows: dict[str, object]) -> Path:
    path = place / "matrix.yaml"
    path.write_text(yaml.safe_dump({"accelerators": {"cpu": CPU}, "legs": list(rows)}))
    return path


def test_a_row_is_the_product_of_its_axes(tmp_path: Path) -> None:
    found = legs(matrix(tmp_path, ROW, {**ROW, "retention": ["lease"], "staged": True}))
    assert list(found) == ["cpu-vllm0.1-ucx-lease", "cpu-vllm0.1-ucx-pin", "cpu-vllm0.1-ucx-lease-staged"]
    assert found["cpu-vllm0.1-ucx-pin"].environment == {
        "NEURON_PD_BACKENDS": "UCX",
        "NEURON_PD_TEST_RETENTION": "pin",
    }
    assert found["cpu-vllm0.1-ucx-lease-staged"].environment["NEURON_PD_BUFFER"] == "staged"
    assert found["cpu-vllm0.1-ucx-lease"].requirements == ["vllm==0.1", "nixl"]


def test_a_leg_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"matrix.yaml: cpu-vllm0\.1-ucx-lease is there twice"):
        legs(matrix(tmp_path, ROW, ROW))


def test_the_matrix_covers_every_tested_release_and_each_accelerator() -> None:
    cpu = {leg.vllm for leg in legs().values() if leg.accelerator.name == "cpu"}
    low, high = TESTED_VLLM
    assert cpu == {f"0.{minor}" for minor in range(low[1], high[1] + 1)}
    assert {leg.accelerator.name for leg in legs().values()} == {"cpu", "cuda", "neuron"}


def test_a_leg_is_named_after_what_it_installs() -> None:
    for leg in legs().values():
        assert leg.release.partition("==")[2].startswith(f"{leg.vllm}.0"), leg.name
        assert re.match(r"nixl\b", leg.requirements[1])


def test_every_leg_runs_tests_and_modules_that_exist() -> None:
    for leg in legs().values():
        assert all((ROOT / path).exists() for path in leg.tests), leg.name
        assert all(find_spec(module) for module in (*leg.modules, *filter(None, [leg.within]))), leg.name


def test_an_instance_of_the_matrix_has_a_profile_of_that_accelerator() -> None:
    for name, row in yaml.safe_load(MATRIX.read_text())["accelerators"].items():
        if instance := row.get("instance"):
            assert Profiles().instance(instance).accelerator == name
