from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_pd.errors import UsageError
from neuron_pd.launcher.profile import known_instances, load_profile, parse_profile, profiles_dir

GOOD: dict[str, Any] = {
    "name": "box",
    "description": "a box",
    "accelerator": "cpu",
    "command": ["serve", "{model}"],
    "environment": {"CORES": "{cores}"},
    "flags": {"max-num-seqs": 8, "enforce-eager": True},
    "kv_transfer": {"buffer_device": "cpu", "backends": ["UCX"]},
    "defaults": {"dtype": "float32", "max_model_len": 1024, "kv_cache_gib": 1},
    "roles": {
        "prefill": {"port": 1, "side_channel_port": 2, "flags": {"max-num-seqs": 1}},
        "decode": {"port": 3, "side_channel_port": 4, "environment": {"ONLY": "decode"}},
    },
}


@pytest.mark.parametrize("name", known_instances())
def test_shipped_profiles_are_valid_and_named_after_their_file(name: str) -> None:
    assert load_profile(name).name == name


def test_cpu_is_known_and_profiles_ship_with_the_package() -> None:
    assert "cpu" in known_instances()
    assert (profiles_dir() / "cpu.yaml").is_file()


def test_a_role_adds_to_and_replaces_what_the_profile_says() -> None:
    profile = parse_profile(GOOD, "box.yaml")
    assert profile.flags_of("prefill") == {"max-num-seqs": 1, "enforce-eager": True}
    assert profile.environment_of("decode") == {"CORES": "{cores}", "ONLY": "decode"}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("colour", "red", "box.yaml: unknown key 'colour'"),
        ("name", None, "box.yaml: name must be text, not None"),
        ("command", "serve", "box.yaml: command must be a list of texts"),
        ("command", ["{modle}"], "box.yaml: unknown value {modle}"),
        ("command", ["{model"], "write {{ and }} for braces"),
        ("environment", {"A": 1}, "box.yaml: environment: A must be a text: put 1 in quotes"),
        ("environment", {"A=B": "x"}, "environment: A=B must be a text"),
        ("flags", {"--port": 1}, "box.yaml: flags: --port must be a flag without dashes"),
        ("flags", {"a": [1]}, "flags: a must be a flag"),
        ("kv_transfer.backends", [], "box.yaml: kv_transfer.backends must be a list of texts"),
        ("kv_transfer", {}, "box.yaml: kv_transfer: buffer_device is missing"),
        ("defaults.max_model_len", 0, "max_model_len must be a whole number above 0, not 0"),
        ("defaults.max_model_len", True, "max_model_len must be a whole number above 0, not True"),
        ("roles", {"prefill": {}}, "box.yaml: roles must be exactly prefill and decode"),
        ("roles.decode", {"port": 1}, "box.yaml: roles.decode: side_channel_port is missing"),
        ("roles.decode.speed", 1, "box.yaml: roles.decode: unknown key 'speed'"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(path: str, value: Any, message: str) -> None:
    body = deepcopy(GOOD)
    *parents, last = path.split(".")
    place = body
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(UsageError) as caught:
        parse_profile(body, "box.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", [None, [], "text", 3])
def test_not_a_mapping(body: Any) -> None:
    with pytest.raises(UsageError, match=r"box.yaml must be a mapping"):
        parse_profile(body, "box.yaml")


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "box.yaml").write_text(yaml.safe_dump(GOOD))
    assert load_profile(str(tmp_path / "box.yaml")).description == "a box"
    with pytest.raises(UsageError, match=r"cannot read the profile .*: No such file"):
        load_profile(str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    with pytest.raises(UsageError, match="is not YAML"):
        load_profile(str(tmp_path / "bad.yaml"))


def test_an_unknown_instance_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown instance 'abacus': use .*cpu"):
        load_profile("abacus")
