from dataclasses import replace
from pathlib import Path

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.plan.calibrate import calibrate, halves, predict
from neuron_pd.plan.observe import Observations, observe, runs_in
from neuron_pd.plan.turn import COLUMNS, Layout

from .truth import BYTES, LAYOUT, PIECES, TRUTH, records_folder, sweep

LENGTHS = (512, 1024, 2048, 4096, 8192)


@pytest.fixture
def noisy(tmp_path: Path) -> Observations:
    return observe(runs_in(records_folder(tmp_path / "a", sweep(LENGTHS, repeats=3, noise=0.1, seed=1))))


def test_a_clean_run_gives_back_the_truth(tmp_path: Path) -> None:
    seen = observe(runs_in(records_folder(tmp_path, sweep(LENGTHS))))
    made, predictions = calibrate(seen, "cpu")
    for name in set(COLUMNS) - {"per_descriptor"}:  # at one block size part of what a byte takes
        assert getattr(made.coefficients, name) == pytest.approx(getattr(TRUTH, name), rel=0.05), name
    assert made.layout == LAYOUT
    assert max(abs(each.error) for each in predictions) < 0.001


def test_a_noisy_run_predicts_its_other_half_and_another_run(noisy: Observations, tmp_path: Path) -> None:
    made, predictions = calibrate(noisy, "cpu")
    assert {each.quantity for each in predictions} == {"acquire", "transfer", "prefill", "ttft"}
    assert max(abs(each.error) for each in predictions) < 0.15  # medians of four or five turns each, ±10 %
    other = observe(runs_in(records_folder(tmp_path / "b", sweep(LENGTHS, repeats=3, noise=0.1, seed=2))))
    found = predict(other.turns, made.coefficients)
    assert len(found) == len(LENGTHS) * 6
    assert max(abs(each.error) for each in found) < 0.1


def test_the_calibration_says_what_it_was_tested_on(noisy: Observations) -> None:
    made, _ = calibrate(noisy, "here")
    assert made.held_out["turns"] == made.held_out["fitted_on"] == len(noisy.turns) // 2
    assert 0 < made.held_out["ttft"]["median_error"] <= made.held_out["ttft"]["largest_error"]
    assert (made.model, made.instance, made.pool_tokens) == ("tiny", "here", 131072)
    assert "neuron-pd bench sweep" in made.sources["coefficients"]


def test_halves_have_every_leg_and_length_and_are_always_the_same(noisy: Observations) -> None:
    one, other = halves(noisy.turns)
    assert halves(noisy.turns) == (one, other)
    assert {(turn.leg, turn.length) for turn in one} == {(turn.leg, turn.length) for turn in other}
    assert len(one) + len(other) == len(noisy.turns)
    assert not {id(turn) for turn in one} & {id(turn) for turn in other}


def test_blocks_of_two_sizes_tell_a_descriptor_s_cost_from_a_byte_s(tmp_path: Path) -> None:
    truth = replace(TRUTH, per_byte=1e-10, per_descriptor=5e-6)
    small = Layout(BYTES, 16, PIECES)
    records_folder(tmp_path, sweep(LENGTHS, truth=truth), name="a.jsonl")
    made, _ = calibrate(observe(runs_in(tmp_path)), "cpu")
    assert made.coefficients.per_descriptor == 0
    assert made.coefficients.moving(LAYOUT).per_byte == pytest.approx(truth.moving(LAYOUT).per_byte, rel=0.02)

    records_folder(tmp_path, sweep(LENGTHS, truth=truth, layout=small), name="b.jsonl", block_size=16)
    made, _ = calibrate(observe(runs_in(tmp_path)), "cpu")
    assert made.coefficients.per_descriptor == pytest.approx(5e-6, rel=0.02)
    assert made.coefficients.per_byte == pytest.approx(1e-10, rel=0.02)


@pytest.mark.parametrize(
    "records",
    [sweep((1024,), repeats=9), sweep((512, 1024), turns=2), [each for each in sweep(LENGTHS) if each.leg == "on"]],
    ids=["one length", "few turns", "one leg"],
)
def test_too_little_is_refused(tmp_path: Path, records) -> None:
    with pytest.raises(UsageError, match="run a longer `bench sweep`"):
        calibrate(observe(runs_in(records_folder(tmp_path, records))), "cpu")
