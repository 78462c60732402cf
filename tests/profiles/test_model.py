from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.errors import UsageError
from neuron_pd.profiles.instance import Instance, parse_instance
from neuron_pd.profiles.model import KV, Weights, parse_model
from tests.profiles.making import INSTANCE, MODEL


def instance(name: str, accelerator: str) -> Instance:
    return parse_instance({**INSTANCE, "name": name, "accelerator": accelerator}, "box.yaml")


def test_an_instance_type_wins_over_its_accelerator_and_a_role_over_both() -> None:
    model = parse_model(MODEL, "m.yaml")
    plain, special = instance("box", "cuda"), instance("box-of-gpus", "cuda")
    assert model.settings(plain, "decode").tensor_parallel_size == 2
    assert model.settings(special, "prefill").tensor_parallel_size == 4
    assert model.settings(special, "prefill").max_num_seqs is None
    decode = model.settings(special, "decode")
    assert (decode.tensor_parallel_size, decode.max_num_seqs, decode.recompute_threshold) == (4, 3, 128)
    assert decode.flags == {"seed": 1, "enforce-eager": True}


def test_a_model_without_settings_for_an_accelerator_is_refused_but_may_be_tried_on_cpu() -> None:
    model = parse_model(MODEL, "m.yaml")
    with pytest.raises(UsageError, match=r"Small-1B has no settings for trn \(neuron\), only for cuda, box-of-gpus: "):
        model.settings(instance("trn", "neuron"), "prefill")
    assert model.settings(instance("box", "cpu"), "prefill").recompute_threshold == 128


def test_weights_may_be_loaded_otherwise_on_an_accelerator() -> None:
    body = deepcopy(MODEL)
    body["targets"]["cuda"]["weights"] = {"bytes": 5}
    model = parse_model(body, "m.yaml")
    assert model.weights_on(instance("box", "cuda")).bytes == 5
    assert model.weights_on(instance("box", "cpu")).bytes == 2_000_000_000


def test_expert_parallelism_spreads_experts_over_all_ranks() -> None:
    weights = Weights(bytes=100, expert_bytes=80)
    assert weights.per_rank(4, 16, spread_experts=True) == 20 / 4 + 80 / 16
    assert weights.per_rank(4, 16, spread_experts=False) == 25


@given(heads=st.sampled_from([1, 2, 3, 4, 8]), tensor=st.integers(1, 64))
def test_tensor_parallelism_divides_heads_and_replicates_what_cannot_be_divided(heads: int, tensor: int) -> None:
    kv = KV(bytes_per_token={"bfloat16": 100 * heads}, heads=heads)
    part = kv.per_rank("bfloat16", tensor)
    assert part is not None
    assert part >= 100  # a whole head at least
    assert part * tensor >= 100 * heads  # nothing is lost
    assert part % 100 == 0


def test_a_latent_is_whole_on_every_rank() -> None:
    kv = KV(bytes_per_token={"bfloat16": 576}, heads=0)
    assert kv.per_rank("bfloat16", 8) == 576
    assert kv.per_rank("int3", 8) is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("kv", {"heads": 1}, "m.yaml: kv: bytes_per_token is missing"),
        ("kv", {"bytes_per_token": {"bfloat16": 0}, "heads": 1}, "kv.bytes_per_token.bfloat16 must be a whole number"),
        ("targets", {"cuda": {"speed": 1}}, "m.yaml: targets.cuda: unknown key 'speed'"),
        ("targets", {"cuda": {"roles": {"decode": {"port": 1}}}}, "targets.cuda.roles.decode: unknown key 'port'"),
        ("weights", {"bytes": -1}, "m.yaml: weights.bytes must be a whole number above 0, not -1"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(key: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_model({**MODEL, key: value}, "m.yaml")
    assert message in str(caught.value)
