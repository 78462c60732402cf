from pathlib import Path

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.profiles import Profiles
from neuron_pd.profiles.store import shipped_dir
from tests.profiles.making import INSTANCE, MODEL, write

CATALOGUE = {
    "trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn2.3xlarge", "inf2.48xlarge",
    "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge",
    "p6-b300.48xlarge", "cpu",
}  # fmt: skip
MODELS = {
    "Qwen3-32B", "Qwen3-8B", "Llama-3.3-70B", "gpt-oss-120b", "gpt-oss-20b", "GLM-5-FP8", "tiny", "smollm2",
}  # fmt: skip


def test_the_catalogue_and_the_models_ship() -> None:
    assert set(Profiles().instances()) == CATALOGUE
    assert set(Profiles().models()) == MODELS


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_shipped_instances_are_valid_and_named_after_their_file(name: str) -> None:
    assert Profiles().instance(name).name == name
    assert (shipped_dir() / f"{name}.yaml").is_file()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen/Qwen3-32B", "Qwen3-32B"),
        ("/models/Qwen3-32B/", "Qwen3-32B"),
        ("qwen3-32b", "Qwen3-32B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.3-70B"),
        ("/home/me/.cache/neuron-pd/models/tiny-1", "tiny"),
        ("zai-org/GLM-5-FP8", "GLM-5-FP8"),
    ],
)
def test_a_model_is_known_by_its_hub_name_and_by_its_directory(name: str, found: str) -> None:
    model = Profiles().model(name)
    assert model is not None
    assert model.name == found


def test_another_model_is_not_known() -> None:
    assert Profiles().model("owner/name") is None


def test_a_profile_of_ones_own_wins_and_a_directory_holds_several(tmp_path: Path) -> None:
    write(tmp_path, "a", "instance", INSTANCE)
    write(tmp_path, "b", "model", {**MODEL, "name": "Qwen3-32B"})
    profiles = Profiles((tmp_path,))
    assert profiles.instance("box").description == "a box"
    model = profiles.model("Qwen3-32B")
    assert model is not None
    assert model.description == "a model"
    assert "box" in profiles.instances()


def test_an_instance_by_its_path(tmp_path: Path) -> None:
    assert Profiles().instance(str(write(tmp_path, "box", "instance", INSTANCE))).description == "a box"
    with pytest.raises(UsageError, match=r"cannot read the profile .*: No such file"):
        Profiles().instance(str(tmp_path / "none.yaml"))
    with pytest.raises(UsageError, match=r"m.yaml is a profile of kind model: an instance is needed here"):
        Profiles().instance(str(write(tmp_path, "m", "model", MODEL)))


def test_extends_takes_the_rest_from_a_file_beside_it_or_one_that_ships(tmp_path: Path) -> None:
    write(tmp_path, "mine", "instance", {"extends": "p5en.48xlarge", "name": "mine", "hardware": {"efa": 3}})
    mine = Profiles((tmp_path,)).instance("mine")
    assert mine.hardware is not None
    assert (mine.hardware.efa, mine.hardware.chip, mine.command) == (3, "H200", ("vllm", "serve", "{model}"))
    write(tmp_path, "next", "instance", {"extends": "mine", "name": "next"})
    assert Profiles((tmp_path,)).instance("next").kv_transfer == mine.kv_transfer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", "is not YAML"),
        ("[]\n", "must be a mapping"),
        ("name: x\n", r"kind is None: use instance, model or base"),
        ("kind: instance\nextends: none\n", r"extends 'none', and there is no none.yaml beside it"),
        ("kind: instance\nextends: bad\n", r"extends goes round"),
    ],
)
def test_a_file_that_is_no_profile(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        Profiles().instance(str(tmp_path / "bad.yaml"))


def test_an_unknown_instance_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown instance 'abacus': use cpu, inf2.48xlarge, .*path of a profile"):
        Profiles().instance("abacus")
