from dataclasses import replace
from pathlib import Path

import pytest

from neuron_pd.bench.records_file import read_run
from neuron_pd.errors import UsageError
from neuron_pd.plan.observe import observe, runs_in
from neuron_pd.plan.turn import Quantity

from .truth import DECODE, LAYOUT, records_folder, sweep

LENGTHS = (512, 1024, 2048)


def test_records_say_what_the_cluster_is(tmp_path: Path) -> None:
    seen = observe(runs_in(records_folder(tmp_path, sweep(LENGTHS))))
    assert (seen.model, seen.accelerator, seen.layout, seen.pool_tokens) == ("tiny", "cpu", LAYOUT, 131072)
    assert seen.decode.fixed == pytest.approx(DECODE.fixed, rel=0.01)
    assert seen.decode.per_context_token == pytest.approx(DECODE.per_context_token, rel=0.05)
    assert len(seen.turns) == len(LENGTHS) * 2 * 4


def test_every_turn_gives_the_points_that_it_has(tmp_path: Path) -> None:
    seen = observe(runs_in(records_folder(tmp_path, sweep((2048,), turns=2))))
    off, on = seen.turns[1], seen.turns[3]
    assert [point.quantity for point in off.points] == [Quantity.PREFILL, Quantity.TTFT]
    assert {point.quantity for point in on.points} == set(Quantity)
    assert (on.points[0].turn.prompt, on.points[0].turn.reused, on.points[0].turn.held) == (2230, 2048, 2048)
    assert seen.turns[0].first


def test_without_the_engines_word_the_block_size_is_read_off_the_reuse(tmp_path: Path) -> None:
    seen = observe(runs_in(records_folder(tmp_path, sweep(LENGTHS), engines=False)))
    assert (seen.layout, seen.pool_tokens, seen.accelerator) == (LAYOUT, 0, "")


def test_turns_that_had_to_wait_for_another_are_left_out(tmp_path: Path) -> None:
    records = sweep(LENGTHS)
    crowd = [replace(record, conversation="beside", started=record.started + 0.001) for record in records[:4]]
    seen = observe(runs_in(records_folder(tmp_path, [*records, *crowd])))
    assert len(seen.turns) == len(records) - 4


def test_failed_turns_and_turns_without_an_account_are_left_out(tmp_path: Path) -> None:
    records = sweep(LENGTHS)
    records[0] = replace(records[0], error="HTTP 500")
    records[1] = replace(records[1], report=None)
    assert len(observe(runs_in(records_folder(tmp_path, records))).turns) == len(records) - 2


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no bench records"):
        runs_in(tmp_path)


def test_records_without_counted_bytes_are_refused(tmp_path: Path) -> None:
    records = [replace(record, read_back=None) for record in sweep(LENGTHS)]
    with pytest.raises(UsageError, match="--prefill-url"):
        observe(runs_in(records_folder(tmp_path, records)))


def test_runs_of_two_models_are_refused(tmp_path: Path) -> None:
    one = read_run(records_folder(tmp_path, sweep(LENGTHS)) / "records.jsonl")
    other = replace(one, header={**one.header, "model": {"name": "smollm2"}})
    with pytest.raises(UsageError, match=r"more than one model \(smollm2, tiny\)"):
        observe([one, other])
