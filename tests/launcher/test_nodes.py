"""One engine on several machines."""

import json
from typing import Any

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.launcher.formats.shell import shell
from neuron_pd.launcher.serve import ServeSpec
from tests.launcher.engines import engine, flags_of

GLM = "zai-org/GLM-5-FP8"


def node(rank: int, role: str = "decode", *flags: str, **given: Any) -> ServeSpec:
    return engine("p5.48xlarge", role, *(flags or ("-tp", "16")), model=GLM, nodes=2, node_rank=rank, **given)


def test_the_nodes_differ_in_their_rank_only() -> None:
    first, second = flags_of(node(0)), flags_of(node(1))
    assert (first.pop("--node-rank"), second.pop("--node-rank")) == ("0", "1")
    assert second.pop("--headless") == ""
    assert first == second
    assert (first["--nnodes"], first["--master-addr"]) == ("2", "10.0.0.2")
    assert node(0).environment() == node(1).environment()


def test_both_have_the_same_id_at_each_start() -> None:
    """NIXL refuses ranks of an engine whose id differs."""
    assert json.loads(flags_of(node(0))["--kv-transfer-config"])["engine_id"] == "decode-10.0.0.2"
    assert "/proc/sys/kernel/random/uuid" not in shell([node(0)])
    assert any("restart prefill too" in note for note in node(0).notes)


def test_each_takes_its_share_of_the_ranks() -> None:
    assert node(0).cores == node(1).cores == "0-7"
    assert "CUDA_VISIBLE_DEVICES" not in node(0).environment()
    half = engine("p5.48xlarge", "decode", "-tp", "8", model="Qwen/Qwen3-32B", nodes=2)
    assert half.environment()["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_memory_is_counted_over_all_nodes() -> None:
    with pytest.raises(UsageError, match="GLM-5-FP8 at tensor parallel 8 does not fit"):
        node(0, "decode", "-tp", "8")


@pytest.mark.parametrize(
    ("instance", "flags", "given", "message"),
    [
        ("p5.48xlarge", ("-tp", "16"), {"node_rank": 2}, "--node-rank 2 is none of 2 nodes: use 0 to 1"),
        ("p5.48xlarge", ("-tp", "16"), {"engines": 2}, "is the only one there: leave --engines out"),
        ("p5.48xlarge", ("-tp", "9"), {}, "--tensor-parallel-size 9 cannot be shared out to 2 nodes"),
        (
            "p5.48xlarge",
            ("-tp", "16"),
            {"cores": "0-3"},
            "tensor parallel 16 on 2 nodes is 8 cores and --cores 0-3 is 4",
        ),
        ("p5.48xlarge", ("-tp", "8", "-dp", "2"), {}, "an engine spans nodes on CUDA with tensor parallelism only"),
        ("trn2.48xlarge", ("-tp", "8"), {}, "an engine spans nodes on CUDA with tensor parallelism only"),
        ("p5.48xlarge", ("-tp", "16"), {"prefill_host": None, "decode_host": None}, "give --decode-host"),
    ],
)
def test_what_cannot_be(instance: str, flags: tuple[str, ...], given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        engine(instance, "decode", *flags, **{"model": "Qwen/Qwen3-32B", "nodes": 2, **given})
    assert message in str(error.value)
