from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ci.compare.__main__ import arguments, engines, failures, show
from ci.compare.systems import EnginesAlone

SIDE: dict[str, Any] = {
    "lengths": {"1024": {"off": {"prefill_ms": 800, "ttft_ms": 900}, "on": {"prefill_ms": 200, "ttft_ms": 300}}},
    "edited_history": {"status": 200, "right": True},
    "idle_conversations": {"longest_s": 1.2, "median_s": 1.0},
    "after_expiry": {"status": 200, "right": True, "error": "", "engine_loop_cores": 0.0},
}


def test_both_systems_have_the_same_engines_but_for_the_connector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PD_CONTROL_TOKEN", "token")
    options = arguments(["--run-dir", str(tmp_path)])
    ours, upstream = (engines(options, name) for name in ("ours", "upstream"))
    assert len(ours.stages()) == 2
    assert len(EnginesAlone(upstream).stages()) == 1  # no proxy
    for one, other in ((ours.prefill, upstream.prefill), (ours.decode, upstream.decode)):
        assert other.variables.items() <= one.variables.items()
        assert one.extra == other.extra
        mine, theirs = dict(one.flags), dict(other.flags)
        config, bare = (flags.pop("kv-transfer-config") for flags in (mine, theirs))
        for name in ("middleware", "host"):
            mine.pop(name)
        assert mine == theirs
        assert "kv_connector_module_path" not in bare
        assert "kv_load_failure_policy" not in bare
        assert bare["kv_connector_extra_config"].items() <= config["kv_connector_extra_config"].items()
        assert bare["kv_connector_extra_config"]["decoder_kv_blocks_ttl"] == 30
    assert upstream.decode.argv()[-2:] == ["--num-gpu-blocks-override", "64"]


@pytest.mark.parametrize(
    ("trial", "value", "said"),
    [
        ("edited_history", {"status": 200, "right": False}, "an edited history got a wrong answer"),
        ("idle_conversations", {"longest_s": 25.0, "median_s": 1.0}, "a turn waited 25.0 s"),
        ("after_expiry", {"status": 500, "right": True, "engine_loop_cores": 0.0}, "a turn after expiry got HTTP 500"),
        ("after_expiry", {"status": 200, "right": True, "engine_loop_cores": 0.1}, "retention took 0.1 of a core"),
        ("after_expiry", {"status": 200, "right": False, "engine_loop_cores": 0.0}, "got a wrong answer"),
    ],
)
def test_what_ours_must_never_show_is_a_failure(trial: str, value: dict[str, Any], said: str) -> None:
    assert failures(SIDE) == []
    shown = {**deepcopy(SIDE), trial: value}
    assert len(failures(shown)) == 1
    assert said in failures(shown)[0]


def test_the_table_puts_them_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    upstream = deepcopy(SIDE)
    upstream["edited_history"]["right"] = False
    upstream["after_expiry"] = {"status": 500, "right": False, "error": "", "engine_loop_cores": 0.1}
    found = {"upstream": upstream, "ours": SIDE, "ttl_s": 30, "versions": {"vllm": "0.32.0"}}
    show(found, Console(width=200))
    shown = capsys.readouterr().out
    for text in (
        "800 → 200 ms (4.0×)",
        "HTTP 200, WRONG answer",
        "HTTP 200, right answer",
        "HTTP 500",
        "0.10 of a core",
    ):
        assert text in shown
    assert "instead of 480" in shown
