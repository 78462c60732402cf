import json
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_pd.bench.records import Cell, Phases, Run, Setting, Transfers, finished
from neuron_pd.bench.records_file import RecordWriter, read_run
from neuron_pd.errors import UsageError

from .making import both_legs, cell_of, read, record, report


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
        prefill_phases=Phases(1, 0.5, 0.1, 0.3),
        head=100.25,
        index=3,
        note="fork",
        due=99.5,
        concurrency=0,
        rate=0.5,
        think=30.0,
        link="1gbit",
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
    with pytest.raises(UsageError, match="is version 9 of the records; this neuron-pd reads version 2"):
        read_run(tmp_path / "x")


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_run(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"cannot read .*records\.jsonl"):
        read_run(tmp_path)
    written(tmp_path / "run.jsonl")
    with pytest.raises(UsageError, match="exists already: name another place with --out"):
        RecordWriter(tmp_path / "run.jsonl", {})
    with pytest.raises(UsageError, match="cannot write"):
        RecordWriter(tmp_path / "run.jsonl" / "below.jsonl", {})


CELL = Cell("on", Setting(1024, think=5.0), 1, 3, 0, 2.5, Transfers(3, 0.1, 900), None, {"prefill": {"reads": 3}})


def test_an_ended_cell_is_a_line_of_its_own(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "records.jsonl", {}) as writer:
        writer.write(record())
        writer.write(CELL)
    run = read_run(tmp_path)
    assert (run.records, run.cells) == ([record()], [CELL])


def test_a_resumed_file_holds_what_was_kept_and_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl")
    kept = Run({**read_run(path).header, "resumed": ["later"]}, both_legs()[:3], [CELL])
    with RecordWriter.resume(path, kept) as writer:
        writer.write(record(turn=9))
    run = read_run(path)
    assert run.records == [*both_legs()[:3], record(turn=9)]
    assert (run.cells, run.header["resumed"], run.header["plan"]) == ([CELL], ["later"], {"turns": 3})
    assert [file.name for file in tmp_path.iterdir()] == ["records.jsonl"]


@given(cut=st.integers(0, 20_000))
@settings(max_examples=40, deadline=None)
def test_wherever_a_run_is_cut_off_what_is_gone_on_with_is_whole(cut: int) -> None:
    """Cells end in turn; a kill leaves any number of bytes. Every cell is then either kept with all of its requests, or
    measured again with none of its earlier ones."""
    groups = [[r for r in both_legs() if (r.leg, r.length) == key] for key in product(("off", "on"), (1024, 2048))]
    with TemporaryDirectory() as directory:
        path = Path(directory) / "records.jsonl"
        with RecordWriter(path, {}) as writer:
            head = path.stat().st_size
            for group in groups:
                for one in group:
                    writer.write(one)
                writer.write(cell_of(group))
        path.write_bytes(path.read_bytes()[: head + cut])
        kept = finished(read_run(path))
        ended = len(kept.cells)
        assert kept.records == [one for group in groups[:ended] for one in group]
        with RecordWriter.resume(path, kept) as writer:
            for group in groups[ended:]:
                for one in group:
                    writer.write(one)
                writer.write(cell_of(group))
        run = read_run(path)
    assert sorted(run.records, key=str) == sorted(both_legs(), key=str)
    assert [cell.key for cell in run.cells] == [cell_of(group).key for group in groups]


def test_a_file_of_version_1_is_read(tmp_path: Path) -> None:
    """As the first release wrote it."""
    line = {"leg": "on", "length": 64, "repeat": 0, "turn": 2, "conversation": "c", "history": "h", "started_at": 1.0}
    line |= {
        "started": 10.0,
        "ended": 12.0,
        "first_token": 10.5,
        "prompt_tokens": 90,
        "read_back": None,
        "report": None,
    }
    line["hand_off"] = {"count": 1, "seconds": 0.5, "bytes": 10, "failed": 0}
    lines = [{"format": "neuron-pd bench", "version": 1, "plan": {}}, line]
    (tmp_path / "old.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (old,) = read_run(tmp_path / "old.jsonl").records
    assert (old.ttft_ms, old.hand_off, old.setting) == (500.0, Transfers(1, 0.5, 10), Setting(64))
