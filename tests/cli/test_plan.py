import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from neuron_pd.cli.plan import command
from neuron_pd.errors import UsageError

from ..plan.truth import records_folder, sweep

QWEN = ("--model", "qwen3-32b")


def plan(*arguments: str) -> str:
    return CliRunner().invoke(command, arguments, catch_exceptions=False).output


def plan_json(*arguments: str) -> Any:
    return json.loads(plan(*arguments, "--json"))


def test_the_table_has_a_row_for_each_prompt_and_says_what_it_leaves_out() -> None:
    said = plan("--model", "Qwen/Qwen3-32B", "--instance", "p5en.48xlarge", "--prompt", "2k,24576", "--reply", "300")
    assert "Qwen/Qwen3-32B on p5en.48xlarge" in said
    assert "2,048" in said
    assert "24,576" in said
    assert "break-even (kv_recompute_threshold)" in said
    assert "conversations of" in said
    assert "error bands" in said


def test_json_holds_the_whole_plan() -> None:
    found = plan_json(*QWEN, "--prompt", "8k", "--rate", "2", "--prefill", "2", "--decode", "2")
    (row,) = found["rows"]
    assert row["prompt_tokens"] == 8192 + 450
    assert 0 < row["ttft_ms_on_low"] < row["ttft_ms_on"] < row["ttft_ms_on_high"]
    assert row["queue_ms_off"] > row["queue_ms_on"] > 0
    assert found["break_even_tokens_low"] < found["break_even_tokens"] < found["break_even_tokens_high"]
    assert found["retention"]["lease_seconds"] == pytest.approx(
        found["retention"]["conversations"]
    )  # one turn a second
    assert found["sources"]["coefficients"]


def test_a_longer_reply_makes_the_next_prompt_longer() -> None:
    short, long = (plan_json(*QWEN, "--prompt", "4k", "--reply", reply)["rows"][0] for reply in ("100", "2000"))
    assert long["prompt_tokens"] - short["prompt_tokens"] == 1900
    assert long["ttft_ms_off"] > short["ttft_ms_off"]


def test_a_slow_link_moves_the_break_even() -> None:
    fast, slow = (plan_json(*QWEN, "--prompt", "8k", "--threshold", "auto", "--gbps", gbps) for gbps in ("3200", "20"))
    assert fast["break_even_tokens"] == plan_json(*QWEN)["break_even_tokens"]
    assert slow["break_even_tokens"] is None
    assert slow["rows"][0]["reused_tokens"] == 0 < fast["rows"][0]["reused_tokens"]


def test_another_block_size_is_planned_in_its_blocks() -> None:
    (row,) = plan_json(*QWEN, "--prompt", "4k", "--block-size", "512")["rows"]
    assert row["reused_tokens"] == (4096 + 300) // 512 * 512


def test_sources_are_told_on_demand() -> None:
    assert "pool_tokens: not published" in plan(*QWEN, "--sources")
    assert "pool_tokens: not published" not in plan(*QWEN)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say --model or --calibration FILE: calibrated are "),
        (("--model", "gpt"), "no calibration for model 'gpt': there are Qwen/Qwen3-32B"),
        (
            (*QWEN, "--instance", "moon"),
            "no calibration on instance 'moon' for Qwen/Qwen3-32B: there are p5en.48xlarge",
        ),
        ((*QWEN, "--rate", "1", "--concurrency", "2"), "say --rate or --concurrency, not both"),
        ((*QWEN, "simulate"), "options of simulate follow its name: move model there"),
        (("calibrate", "."), ". holds no bench records"),
        (("simulate", *QWEN, "--pool-tokens", "1k"), "raise --pool-tokens"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        plan(*arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "text"), [("--prompt", "0"), ("--pool-tokens", "1k,2k"), ("--threshold", "often"), ("--turn", "0")]
)
def test_options_that_cannot_be_read_are_refused(option: str, text: str) -> None:
    done = CliRunner().invoke(command, [*QWEN, option, text])
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in done.output


@pytest.mark.parametrize("text", ["2k,x", "", "2k,"])
def test_what_is_no_list_of_token_counts_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--prompt .* is not a list of token counts"):
        plan(*QWEN, "--prompt", text)


def test_an_unknown_model_is_exit_status_2() -> None:
    argv = [sys.executable, "-m", "neuron_pd", "plan", "--model", "gpt"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("neuron-pd: error: no calibration for model 'gpt'")
    assert len(done.stderr.splitlines()) == 1


def test_calibrate_writes_a_file_that_plans(tmp_path: Path) -> None:
    lengths = (512, 1024, 2048, 4096)
    records_folder(tmp_path / "a", sweep(lengths, noise=0.05, seed=1))
    records_folder(tmp_path / "b", sweep(lengths, noise=0.05, seed=2))
    said = plan("calibrate", str(tmp_path / "a"), "--against", str(tmp_path / "b"))
    assert "the half that it was not fitted on" in said
    assert "another run" in said
    found = plan_json("--calibration", str(tmp_path / "a" / "calibration.json"), "--prompt", "1k,4k", "--reply", "32")
    assert (found["model"], found["instance"]) == ("tiny", "cpu")
    assert found["held_out"]["ttft"]["largest_error"] < 0.1
    assert found["rows"][1]["ttft_speedup"] > 4


def test_calibrate_as_json(tmp_path: Path) -> None:
    records_folder(tmp_path, sweep((512, 2048, 4096)))
    found = plan_json("calibrate", str(tmp_path), "--out", str(tmp_path / "c.json"))
    assert found["calibration"] == str(tmp_path / "c.json")
    (rows,) = found["predictions"].values()
    assert {row["quantity"] for row in rows} == {"acquire", "transfer", "prefill", "ttft"}


def test_records_that_do_not_say_what_they_ran_on_need_a_name(tmp_path: Path) -> None:
    records_folder(tmp_path, sweep((512, 2048, 4096)), engines=False)
    with pytest.raises(UsageError, match="--instance"):
        plan("calibrate", str(tmp_path))
    assert plan_json("calibrate", str(tmp_path), "--instance", "here")
    with pytest.raises(UsageError, match="say --pool-tokens"):
        plan("simulate", "--calibration", str(tmp_path / "calibration.json"))


SMALL = ("simulate", *QWEN, "--conversations", "40", "--turns", "3", "--rate", "0.5", "--pool-tokens", "100k")


def test_simulate_has_a_row_for_each_way() -> None:
    said = plan(*SMALL, "--routing", "sticky", "--routing", "round-robin", "--decode", "2")
    rows = ("off, sticky", "off, round-robin", "on, lease, sticky", "on, pin, sticky", "on, pin")
    assert all(row in said for row in rows)


def test_simulate_as_json_is_the_same_for_the_same_seed() -> None:
    one, again, other = (plan_json(*SMALL, "--seed", seed) for seed in ("1", "1", "2"))
    assert one == again != other
    off, lease, pin = one["rows"]
    assert off["hit_rate"] == 0 < lease["hit_rate"]
    assert {row["requests"] for row in one["rows"]} == {120}
    assert off["ttft_ms_p50"] > lease["ttft_ms_p50"]
    assert (lease["policy"]["retention"], pin["policy"]["retention"]) == ("lease", "pin")


def test_simulate_one_way_alone() -> None:
    (row,) = plan_json(*SMALL, "--reuse", "on", "--retention", "pin", "--ttl", "5", "--pin-budget", "0.5")["rows"]
    assert row["policy"] == {
        "reuse": True,
        "retention": "pin",
        "routing": "sticky",
        "threshold": 64,
        "ttl": 5.0,
        "pin_budget": 0.5,
        "direct": False,
    }
