from copy import deepcopy
from typing import Any

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.profiles.instance import Hardware, parse_instance
from tests.profiles.making import INSTANCE


def test_a_role_adds_to_and_replaces_what_the_instance_says() -> None:
    instance = parse_instance(INSTANCE, "box.yaml")
    prefill, decode = instance.settings("prefill"), instance.settings("decode")
    assert prefill.flags == {"max-num-seqs": 1, "enforce-eager": True}
    assert decode.flags == {"max-num-seqs": 8, "enforce-eager": True}
    assert decode.environment == {"CORES": "{cores}", "ONLY": "decode"}
    assert prefill.dtype == decode.dtype == "float32"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("colour", "red", "box.yaml: unknown key 'colour'; known are name, description"),
        ("name", None, "box.yaml: name must be text, not None"),
        ("accelerator", "abacus", "box.yaml: accelerator is 'abacus': use cpu or cuda or neuron"),
        ("command", "serve", "box.yaml: command must be a list of texts"),
        ("command", ["{modle}"], "box.yaml: unknown value {modle}"),
        ("command", ["{model"], "write {{ and }} for braces"),
        ("defaults.environment", {"A": 1}, "box.yaml: defaults.environment: A must be a text: put 1 in quotes"),
        ("defaults.environment", {"A=B": "x"}, "environment: 'A=B' is not a name of an environment variable"),
        ("defaults.flags", {"--port": 1}, "box.yaml: defaults.flags: --port must be a flag without dashes"),
        ("defaults.flags", {"a": [1]}, "flags: a must be a flag"),
        ("defaults.neuron_config", [1], "box.yaml: defaults.neuron_config must be a mapping"),
        ("kv_transfer.backends", [], "box.yaml: kv_transfer.backends must be a list of texts"),
        ("kv_transfer", {}, "box.yaml: kv_transfer: buffer_device is missing"),
        ("defaults.max_model_len", 0, "defaults.max_model_len must be a whole number above 0, not 0"),
        ("defaults.max_model_len", True, "max_model_len must be a whole number above 0, not True"),
        ("defaults.colour", 1, "box.yaml: defaults: unknown key 'colour'"),
        ("roles", {"prefill": {}}, "box.yaml: roles must be exactly prefill and decode"),
        ("roles.decode", {"port": 1}, "box.yaml: roles.decode: side_channel_port is missing"),
        ("roles.decode.speed", 1, "box.yaml: roles.decode: unknown key 'speed'"),
        ("hardware", {"chip": "X"}, "box.yaml: hardware: devices is missing"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(path: str, value: Any, message: str) -> None:
    body = deepcopy(INSTANCE)
    *parents, last = path.split(".")
    place = body
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(UsageError) as caught:
        parse_instance(body, "box.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", [None, [], "text", 3])
def test_not_a_mapping(body: Any) -> None:
    with pytest.raises(UsageError, match=r"box.yaml must be a mapping"):
        parse_instance(body, "box.yaml")


def test_the_devices_of_a_slice_are_trn2s_logical_cores_times_lnc_over_eight() -> None:
    trn2 = Hardware(chip="Trn2", devices=16, cores=64, hbm_gib=96, efa=16)
    for core in range(64):
        assert trn2.devices_of([core]) == [core * 2 // 8]
    assert trn2.core_hbm == 24
