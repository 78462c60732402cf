from pathlib import Path

import pytest

from neuron_pd.bench.records import RecordWriter, Transfers, read_run
from neuron_pd.errors import UsageError

from .making import both_legs, read, record, report


def written(path: Path) -> Path:
    with RecordWriter(path, {"neuron_pd": "0.1.0", "plan": {"turns": 3}}) as writer:
        for made in both_legs():
            writer.write(made)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run = read_run(written(tmp_path / "deep" / "run.jsonl"))
    assert run.records == both_legs()
    assert (run.header["neuron_pd"], run.header["plan"]) == ("0.1.0", {"turns": 3})


def test_every_field_survives_and_times_stay_exact(tmp_path: Path) -> None:
    full = record(
        reply="two\nlines \u2028 \x85 é",
        cached_tokens=64,
        error="broke",
        started=123456.78901234567,
        report=report(512, verified=528, local=16),
        read_back=read(12.5, 512),
        hand_off=Transfers(),
    )
    with RecordWriter(tmp_path / "run.jsonl", {}) as writer:
        writer.write(full)
    assert read_run(tmp_path / "run.jsonl").records == [full]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes()[:-100])
    assert read_run(path).records == both_legs()[:-1]


def test_records_are_there_before_the_file_is_closed(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "run.jsonl", {}) as writer:
        writer.write(record())
        assert read_run(tmp_path / "run.jsonl").records == [record()]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl")
    lines = path.read_text().splitlines()
    for broken in ("{torn", "{}", "[]", "3"):
        path.write_text("\n".join([*lines[:2], broken, *lines[3:]]) + "\n")
        with pytest.raises(UsageError, match="line 3 is not a bench record"):
            read_run(path)


@pytest.mark.parametrize("text", ["", "hello\n", "{}\n", "[1]\n", '{"format": "something else"}\n'])
def test_a_file_that_holds_no_records(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(UsageError, match="holds no bench records: name a file that"):
        read_run(tmp_path / "x")


def test_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"format": "neuron-pd bench", "version": 9}\n')
    with pytest.raises(UsageError, match="is version 9 of the records; this neuron-pd reads version 1"):
        read_run(tmp_path / "x")


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_run(tmp_path / "absent")
    with pytest.raises(UsageError, match="Is a directory"):
        read_run(tmp_path)
    written(tmp_path / "run.jsonl")
    with pytest.raises(UsageError, match="exists already: name another file with --out"):
        RecordWriter(tmp_path / "run.jsonl", {})
    with pytest.raises(UsageError, match="cannot write"):
        RecordWriter(tmp_path / "run.jsonl" / "below.jsonl", {})


def test_times_are_derived_from_the_raw_ones() -> None:
    made = record(ttft=0.5)
    assert (made.ttft_ms, made.content_ms, made.prefill_ms) == (500.0, 750.0, 400.0)
    assert record(first_token=None, server_timing={}).ttft_ms is None
    assert record(server_timing={}).prefill_ms is None
