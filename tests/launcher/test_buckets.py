from typing import Any

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.launcher.buckets import with_buckets
from tests.launcher.engines import MODELS, engine, neuron_config

FLAGS = {"max-num-batched-tokens": 4096, "max-num-seqs": 8, "block-size": 32, "max-model-len": 32768}


def filled(config: dict[str, Any], **flags: Any) -> Any:
    given = {**FLAGS, **{name.replace("_", "-"): value for name, value in flags.items()}}
    additional: Any = with_buckets({**given, "additional-config": {"neuron_config": config, "other": 1}})[
        "additional-config"
    ]
    assert additional["other"] == 1
    return additional["neuron_config"]


def test_what_nobody_gave_is_one_bucket_of_the_greatest_size() -> None:
    assert filled({"quantization": "x"}) == {
        "quantization": "x",
        "num_batched_tokens_buckets": [4096],
        "kv_segment_size_buckets": [4096],
        "num_seqs_buckets": [8],
    }


def test_what_was_given_stays() -> None:
    config = {
        "num_batched_tokens_buckets": [512, 4096],
        "kv_segment_size_buckets": [512, 4096],
        "num_seqs_buckets": [1, 8],
    }
    assert filled(config) == config


@pytest.mark.parametrize(
    ("config", "flags", "message"),
    [
        (
            {"num_batched_tokens_buckets": [512, 2048]},
            {},
            "the largest of num_batched_tokens_buckets is 2048 and --max-num-b",
        ),
        (
            {"num_seqs_buckets": [1, 4]},
            {},
            "the largest of num_seqs_buckets is 4 and --max-num-seqs is 8: they must be equal",
        ),
        (
            {"kv_segment_size_buckets": [2048]},
            {},
            "kv_segment_size_buckets is [2048] and num_batched_tokens_buckets is [4096]",
        ),
        ({}, {"max_num_batched_tokens": 4000}, "kv_segment_size_buckets has 4000: each must be one of 512, 1024, 2048"),
        ({}, {"block_size": 48}, "kv_segment_size_buckets has 4096, which is not whole blocks of --block-size 48"),
        ({"num_seqs_buckets": [8, 1]}, {}, "num_seqs_buckets is [8, 1]: it must be a list of whole numbers that rise"),
        ({"num_seqs_buckets": "8"}, {}, "num_seqs_buckets is '8': it must be a list"),
        (
            {"decode_context_length_buckets": [100]},
            {},
            "decode_context_length_buckets has 100: each must be a multiple of 128",
        ),
        ({"decode_context_length_buckets": [32768]}, {}, "has 32768: each must be a multiple of 128 below 32768"),
    ],
)
def test_buckets_that_cannot_work(config: dict[str, Any], flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        filled(config, **flags)
    assert message in str(caught.value)


def test_a_persons_flag_is_checked_against_the_profiles_buckets() -> None:
    with pytest.raises(UsageError, match="num_batched_tokens_buckets is 4096 and --max-num-batched-tokens is 8192"):
        engine("trn2.48xlarge", "prefill", "--max-num-batched-tokens", "8192")
    buckets = '{"neuron_config":{"num_batched_tokens_buckets":[8192],"kv_segment_size_buckets":[8192]}}'
    spec = engine("trn2.48xlarge", "prefill", "--max-num-batched-tokens", "8192", "--additional-config", buckets)
    assert neuron_config(spec)["num_batched_tokens_buckets"] == [8192]
    assert neuron_config(spec)["num_seqs_buckets"] == [1, 4, 8]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_shipped_profiles_keep_the_rules(model: str, role: str) -> None:
    config = neuron_config(engine("trn2.48xlarge", role, model=model))
    assert config["kv_segment_size_buckets"] == config["num_batched_tokens_buckets"]
