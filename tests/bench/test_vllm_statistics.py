import json
from pathlib import Path

import pytest

from neuron_pd.bench.vllm_statistics import FIELDS, read_statistics, statistics, write_statistics
from neuron_pd.errors import UsageError

from .making import record, report


def test_a_request_as_vllms_benchmark_would_put_it() -> None:
    made = record(ttft=0.25, turn=3, first_content=100.5, ended=102.5, reply_tokens=5, pieces=5, report=report(900))
    found = statistics(made)
    assert tuple(found) == FIELDS
    assert (found["ttft_ms"], found["latency_ms"], found["tpot_ms"]) == (500.0, 2500.0, 500.0)
    assert (found["input_num_turns"], found["input_num_tokens"]) == (5, 1024)
    assert (found["output_num_tokens"], found["output_num_chunks"], found["output_num_first_chunk_tokens"]) == (5, 4, 1)
    assert found["approx_cached_percent"] == pytest.approx(100 * 900 / 1024)
    assert (found["start_time_ms"], found["conversation_id"]) == (100_000.0, "on-1024")


def test_several_tokens_in_the_first_event_are_counted_out_of_the_ttft() -> None:
    found = statistics(
        record(first_content=101.0, ended=102.2, reply_tokens=8, pieces=2, report=None, cached_tokens=64)
    )
    # Four tokens came first, at 1 s; the other four took 1.2 s.
    assert found["tpot_ms"] == pytest.approx(300.0)
    assert found["ttft_ms"] == pytest.approx(1000.0 - 3 * 300.0)
    assert found["approx_cached_percent"] == pytest.approx(6.25)


def test_written_and_read_in_the_order_of_sending(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    late, early = record(started=200.0, first_content=200.5, ended=202.0, pieces=1), record(pieces=1)
    write_statistics([late, early, record(error="broke"), record(first_content=None)], path)
    assert len(json.loads(path.read_text())) == 2
    assert [one["start_time_ms"] for one in read_statistics(path)] == [100_000.0, 200_000.0]


@pytest.mark.parametrize("text", ["{}", "torn", "[1]", '[{"ttft_ms": 1}]'])
def test_files_that_hold_no_statistics(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(UsageError, match="holds no statistics of vLLM's multi-turn benchmark"):
        read_statistics(tmp_path / "x")
    with pytest.raises(UsageError, match="cannot read"):
        read_statistics(tmp_path / "absent")
    with pytest.raises(UsageError, match="cannot write"):
        write_statistics([], tmp_path)
