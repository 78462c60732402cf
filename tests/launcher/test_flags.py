import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.errors import UsageError
from neuron_pd.launcher.flags import as_words, number, override, parse_flags

OURS = {"max-num-seqs": 8, "enforce-eager": True, "kv-transfer-config": {"kv_rank": 0, "extra": {"a": 1, "b": 2}}}


def merged(*words: str) -> tuple[dict[str, Any], list[str]]:
    return override(OURS, parse_flags(words))


@pytest.mark.parametrize("words", [("--max-num-seqs", "3"), ("--max-num-seqs=3",), ("--max_num_seqs", "3")])
def test_a_flag_takes_the_place_of_ours(words: tuple[str, ...]) -> None:
    flags, rest = merged(*words)
    assert (list(flags), flags["max-num-seqs"], rest) == (list(OURS), "3", [])


def test_a_switch_is_turned_off_and_the_last_one_counts() -> None:
    assert merged("--no-enforce-eager")[0]["enforce-eager"] is False
    assert merged("--max-num-seqs", "3", "--max-num-seqs", "4")[0]["max-num-seqs"] == "4"


def test_what_is_not_ours_is_left_as_it_is() -> None:
    words = ["--seed", "-7", "--lora-modules", "a=b", "c=d", "-O3", "--x={}"]
    assert merged(*words) == (OURS, words)


def test_several_values_take_the_place_of_one() -> None:
    flags, rest = override({"served-model-name": "a", "port": 1}, parse_flags(["--served-model-name", "b", "c"]))
    assert (flags, rest) == ({"port": 1}, ["--served-model-name", "b", "c"])


def test_short_names() -> None:
    flags, _ = override({"tensor-parallel-size": 8}, parse_flags(["-tp", "4"]))
    assert flags == {"tensor-parallel-size": "4"}


def test_objects_are_merged_key_by_key() -> None:
    flags, rest = merged("--kv-transfer-config", '{"kv_rank": 5, "extra": {"b": 3, "c": [4]}}')
    assert flags["kv-transfer-config"] == {"kv_rank": 5, "extra": {"a": 1, "b": 3, "c": [4]}}
    assert rest == []
    dotted, _ = merged("--kv-transfer-config.extra.b", "9", "--kv-transfer-config.kv_role=kv_both")
    assert dotted["kv-transfer-config"] == {"kv_rank": 0, "kv_role": "kv_both", "extra": {"a": 1, "b": 9}}
    assert OURS["kv-transfer-config"] == {"kv_rank": 0, "extra": {"a": 1, "b": 2}}


def test_middleware_adds_to_ours() -> None:
    flags, rest = override({"middleware": "ours"}, parse_flags(["--middleware", "theirs"]))
    assert as_words(flags) + rest == ["--middleware", "ours", "--middleware", "theirs"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["extra"], "unexpected 'extra': what is meant for vLLM goes behind --, flag first"),
        (["extra", "--seed", "7"], "unexpected 'extra'"),
        (["--api-key", "sk-1"], "--api-key would show a secret to everyone: leave it out and set VLLM_API_KEY instead"),
        (["--hf_token=x"], "--hf-token would show a secret to everyone: leave it out and set HF_TOKEN instead"),
        (["--kv-transfer-config", "{"], "--kv-transfer-config takes one JSON object"),
        (["--kv-transfer-config"], "--kv-transfer-config takes one JSON object"),
        (["--additional-config", "[1]"], "--additional-config takes one JSON object"),
    ],
)
def test_wrong_words(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        merged(*words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "found"), [("8", 8), (8, 8), ("auto", None), ("32k", None), (True, None), (None, None)]
)
def test_numbers(value: Any, found: int | None) -> None:
    assert number({"a": value} if value is not None else {}, "a") == found


@pytest.mark.slow
@given(
    st.dictionaries(
        st.from_regex(r"[a-z]+(-[a-z]+)*", fullmatch=True), st.one_of(st.booleans(), st.text(), st.integers())
    )
)
def test_words_parse_back(flags: dict[str, Any]) -> None:
    flags = {name: value for name, value in flags.items() if not name.startswith(("no-", "api-key", "hf-token"))}
    found = {item.name: item.value for item in parse_flags(as_words(flags))}
    assert found == {name: value if isinstance(value, bool) else str(value) for name, value in flags.items()}


def test_an_object_is_written_as_one_word() -> None:
    assert as_words({"additional-config": {"a": {"b": [1]}}}) == [
        "--additional-config",
        json.dumps({"a": {"b": [1]}}).replace(" ", ""),
    ]
