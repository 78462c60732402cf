"""What engines say, one thing wrong at a time: each is named by what it is about."""

from dataclasses import replace
from typing import Any

import pytest

from neuron_pd.core import fit
from tests.core.test_control import INFO

PREFILL = replace(INFO, role="prefill", prefix_caching=False)


def test_a_pair_that_fits() -> None:
    assert list(fit.alone(PREFILL, fit.PREFILL)) == list(fit.alone(INFO, fit.DECODE)) == []
    assert list(fit.together(INFO, PREFILL, "http://p")) == list(fit.outlived(INFO, 9999)) == []


@pytest.mark.parametrize(
    ("wrong", "about"),
    [
        ({"role": "prefill"}, "role"),
        ({"bidirectional": False}, "bidirectional"),
        ({"prefix_caching": False}, "prefix caching"),
        ({"nixl": "1.4.0"}, "NIXL"),
    ],
)
def test_an_engine_alone(wrong: dict[str, Any], about: str) -> None:
    (problem,) = fit.alone(replace(INFO, **wrong), fit.DECODE)
    assert problem.about == about
    assert problem.change


@pytest.mark.parametrize(
    ("other", "about", "fatal"),
    [
        ({"vllm": "0.29.0"}, "vLLM", True),
        ({"block_size": 16}, "block size", True),
        ({"kv_layout": "NHD"}, "KV layout", False),
        ({"retention": "pin"}, "retention", False),
        ({"model": "/models/other"}, "model", False),
        ({"version": "9"}, "neuron-pd", False),
    ],
)
def test_two_engines(other: dict[str, Any], about: str, fatal: bool) -> None:
    mine = replace(INFO, kv_layout="HND")
    (problem,) = fit.together(mine, replace(mine, **other), "http://p:8100")
    assert (problem.about, problem.fatal) == (about, fatal)
    assert "at http://p:8100" in problem.what


def test_one_model_in_two_directories_fits() -> None:
    assert not list(fit.together(INFO, replace(INFO, model="/elsewhere/tiny/"), "http://p"))


def test_blocks_that_are_gone_before_the_conversation_is() -> None:
    pinned = replace(INFO, retention="pin", decoder_kv_blocks_ttl=480.0)
    (problem,) = fit.outlived(pinned, 600)
    assert problem.what == "it keeps blocks for 480 s, and conversations are remembered for 600 s"
    assert not list(fit.outlived(pinned, 480))
