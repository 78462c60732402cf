from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.errors import UsageError
from neuron_pd.launcher.cores import parse_cores
from neuron_pd.launcher.layout import check_cores_apart
from neuron_pd.launcher.serve import ServeSpec, check_against_peer
from tests.launcher.engines import ONE_NODE, engine

GPT = "openai/gpt-oss-20b"


def channels(spec: ServeSpec) -> set[int]:
    first = spec.side_channel_port
    return set(range(first, first + spec.layout.data_parallel))


def test_two_nodes_have_the_same_slice_each() -> None:
    for role, port in (("prefill", 8100), ("decode", 8200)):
        spec = engine("trn2.48xlarge", role)
        assert (spec.cores, spec.port) == ("0-7", port)


def test_on_one_node_prefill_comes_first_and_decode_last() -> None:
    prefill, decode = (engine("trn2.48xlarge", role, model=GPT, **ONE_NODE) for role in ("prefill", "decode"))
    assert (prefill.cores, decode.cores) == ("0-3", "32-63")
    assert (prefill.side_channel_port, decode.side_channel_port) == (5559, 5659)
    assert channels(decode) == {5659, 5660, 5661, 5662}
    for spec in (prefill, decode):
        check_against_peer(spec)


@given(
    model=st.sampled_from(["Qwen/Qwen3-32B", "Qwen/Qwen3-8B"]),
    prefills=st.integers(1, 6),
    decodes=st.integers(1, 6),
    data=st.sampled_from([1, 2]),
    instance=st.sampled_from(["trn2.48xlarge", "p5en.48xlarge"]),
)
def test_engines_of_one_machine_never_collide(
    model: str, prefills: int, decodes: int, data: int, instance: str
) -> None:
    counts = {"prefill": prefills, "decode": decodes}
    flags = ("--tensor-parallel-size", "2", "--data-parallel-size", str(data), "--max-model-len", "1024")
    size, total = 2 * data, 64 if instance.startswith("trn2") else 8
    if (prefills + decodes) * size > total:
        return
    specs = [
        engine(instance, role, *flags, model="Qwen/Qwen3-8B", engines=count, index=index, **ONE_NODE)
        for role, count in counts.items()
        for index in range(count)
    ]
    for one, other in combinations(specs, 2):
        assert not set(parse_cores(one.cores)) & set(parse_cores(other.cores))
        assert one.port != other.port
        assert not channels(one) & channels(other)
    for spec in specs:
        assert parse_cores(spec.cores)[0] % 2 == 0
        assert len(parse_cores(spec.cores)) == size
        check_against_peer(spec)


@pytest.mark.parametrize(
    ("instance", "flags", "given_", "message"),
    [
        ("trn2.48xlarge", (), {"cores": "0-3"}, "tensor parallel 8 x data parallel 1 is 8 cores and --cores 0-3 is 4"),
        (
            "trn2.48xlarge",
            (),
            {"cores": "4-11"},
            "starts at a multiple of the tensor-parallel size 8: --cores 4-11 is ",
        ),
        ("trn2.48xlarge", (), {"cores": "0-3,8-11"}, "on trn2.48xlarge a slice is one run that starts at a multiple"),
        ("trn2.48xlarge", (), {"cores": "60-67"}, "trn2.48xlarge has cores 0-63: a prefill engine of 8 cores do"),
        ("trn2.48xlarge", (), {"engines": 9, "index": 8}, "9 prefill engines of 8 cores do not fit; lower --engines"),
        ("trn2.3xlarge", (), {}, "trn2.3xlarge has cores 0-3: a prefill engine of 8 cores do not fit; lower"),
        ("p5en.48xlarge", ("-tp", "9"), {}, "p5en.48xlarge has cores 0-7: a prefill engine of 9 cores do not fit"),
        ("p5en.48xlarge", ("-tp", "all"), {}, "--tensor-parallel-size is 'all': use a whole number above 0"),
        ("p5en.48xlarge", ("-dp", "0"), {}, "--data-parallel-size is '0': use a whole number above 0"),
    ],
)
def test_cores_that_cannot_be(instance: str, flags: tuple[str, ...], given_: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        engine(instance, "prefill", *flags, **given_)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("role", "flags", "given_", "message"),
    [
        ("prefill", (), {"cores": "56-63"}, "prefill on cores 56-63 and decode on 56-63 share core 56 of this machine"),
        ("prefill", (), {"port": 8200}, "port 8200 is decode's on this machine: give --port another"),
        ("prefill", ("--port", "8200"), {}, "port 8200 is decode's on this machine: give --port another"),
        ("decode", (), {"side_channel_port": 5559}, "side-channel port 5559 is prefill's on this machine"),
        ("prefill", ("-tp", "64"), {}, "prefill on cores 0-63 and decode on 0-63 share core 0 of this machine: lower"),
    ],
)
def test_roles_that_are_in_each_others_place(role: str, flags: tuple[str, ...], given_: Any, message: str) -> None:
    spec = engine("trn2.48xlarge", role, *flags, **{**ONE_NODE, **given_})
    with pytest.raises(UsageError) as caught:
        check_against_peer(spec)
    assert message in str(caught.value)
    check_against_peer(engine("trn2.48xlarge", role, *flags, **given_))  # on two machines nothing is in its place


def test_a_model_that_fills_the_node_does_not_share_it() -> None:
    with pytest.raises(UsageError, match="prefill on cores 0-7 and decode on 0-7 share core 0"):
        check_against_peer(engine("p5en.48xlarge", **ONE_NODE))
    check_against_peer(engine("p5en.48xlarge", "prefill", "-tp", "4", **ONE_NODE))


def test_cores_of_a_whole_topology_are_apart_and_those_of_a_cpu_may_be_shared() -> None:
    for instance, shared in (("cpu", False), ("p5en.48xlarge", True)):
        specs = [engine(instance, role, model="owner/name", cores="0-7", **ONE_NODE) for role in ("prefill", "decode")]
        layouts = {spec.role: spec.layout for spec in specs}
        if shared:
            with pytest.raises(UsageError, match="prefill on cores 0-7 and decode on 0-7 share core 0 of this machine"):
                check_cores_apart(layouts, specs[0].instance)
        else:
            check_cores_apart(layouts, specs[0].instance)


def test_a_part_of_the_gpus_is_made_visible_and_all_of_them_need_nothing() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in engine("p5en.48xlarge").environment()
    decode = engine("p5en.48xlarge", "decode", "-tp", "4", **ONE_NODE)
    assert decode.environment()["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert decode.side_channel_port == 5700
