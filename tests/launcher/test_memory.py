import json
from pathlib import Path

import pytest

from neuron_pd.errors import UsageError
from tests.launcher.engines import MODELS, engine

GIB = 2**30


def test_the_arithmetic_of_a_core() -> None:
    found = engine("trn2.48xlarge").fit
    assert found is not None
    assert found.weights == 65524246528 / 8
    assert found.kv_per_token == 262144 / 8
    assert found.core == 24 * GIB
    assert found.usable == 24 * GIB * 0.9
    assert found.tokens == int((24 * GIB * 0.9 - 65524246528 / 8) / 32768)


def test_tensor_parallelism_above_the_heads_replicates_kv() -> None:
    found = engine("trn2.48xlarge", model="meta-llama/Llama-3.3-70B-Instruct").fit
    assert found is not None
    assert found.kv_per_token == 327680 / 8


def test_what_does_not_fit_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(UsageError) as caught:
        engine("p5.48xlarge", model="zai-org/GLM-5-FP8")
    assert str(caught.value) == (
        "GLM-5-FP8 at tensor parallel 8 does not fit: 88.0 GiB of weights + 32,768 tokens x 100,152 bytes = 3.1 GiB of "
        "KV, of 72.0 GiB that vLLM may use of 80 GiB a GPU; raise --tensor-parallel-size (behind --) or choose a larger"
        " --instance"
    )


def test_a_sequence_that_is_too_long_says_how_long_it_may_be() -> None:
    short = ("-tp", "2", "--gpu-memory-utilization", "0.8")
    with pytest.raises(UsageError, match=r"lower --max-model-len to (\d+)") as caught:
        engine("p4d.24xlarge", "prefill", *short, "--max-model-len", "40960")
    length = str(caught.value).rsplit(" ", 1)[1]
    assert engine("p4d.24xlarge", "prefill", *short, "--max-model-len", length).fit


def test_fp8_kv_takes_half_and_a_persons_share_of_memory_counts() -> None:
    found = engine("p5en.48xlarge", "prefill", "--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.5").fit
    assert found is not None
    assert found.kv_per_token == 131072 / 8
    assert found.usable == 141 * GIB / 2


def test_a_directory_is_measured_by_its_own_files(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
    config = {"num_hidden_layers": 2, "dtype": "bfloat16", **heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(bytes(4096))
    found = engine("p5en.48xlarge", model=str(tmp_path)).fit
    assert found is not None
    assert (found.weights, found.kv_per_token) == (4096 / 8, 2 * 2 * 4 * 64 * 2 / 4)


def test_a_model_that_nothing_is_known_of_is_said_to_be_unchecked() -> None:
    spec = engine("p5en.48xlarge", model="owner/name")
    assert spec.fit is None
    assert any("fit into memory was not checked" in note for note in spec.notes)


def test_sequences_that_do_not_all_fit_at_once_are_noted() -> None:
    spec = engine("p5en.48xlarge", "prefill", "--max-num-seqs", "4096")
    assert any("sequences of the greatest length fit at once; of --max-num-seqs 4096" in note for note in spec.notes)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("instance", ["trn2.48xlarge", "p5en.48xlarge"])
def test_the_shipped_models_fit(model: str, role: str, instance: str) -> None:
    found = engine(instance, role, model=model).fit
    assert found is not None
    assert found.fits
