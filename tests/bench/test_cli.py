import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from neuron_pd.bench.records_file import RecordWriter, read_run
from neuron_pd.cli import main

from .endpoint import Endpoint
from .making import both_legs

QUICK = ("--lengths", "64,128", "--turns", "2", "--user-tokens", "8", "--reply-tokens", "2")


@dataclass
class Ended:
    code: int
    out: str
    err: str


async def start(*arguments: str, cwd: Path) -> asyncio.subprocess.Process:
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "neuron_pd", "bench", *arguments)
    return await asyncio.create_subprocess_exec(*command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe)


async def bench(*arguments: str, cwd: Path) -> Ended:
    process = await start(*arguments, cwd=cwd)
    out, err = await process.communicate()
    return Ended(process.returncode or 0, out.decode(), err.decode())


def records_file(path: Path) -> Path:
    with RecordWriter(path, {"neuron_pd": "0.1.0"}) as writer:
        for record in both_legs():
            writer.write(record)
    return path


async def test_sweep_then_report(endpoint: Endpoint, tmp_path: Path) -> None:
    swept = await bench("sweep", "--url", f"{endpoint.url}/", "--prefill-url", endpoint.url, *QUICK, cwd=tmp_path)
    assert swept.code == 0, swept.err
    assert "answers: 4 of 4 ON answers equal the OFF answers" in swept.out
    assert swept.err.count("TTFT") == 8
    (path,) = (tmp_path / "results").iterdir()
    assert len(read_run(path).records) == 8
    assert f"neuron-pd bench report results/{path.name}/records.jsonl" in swept.err

    reported = await bench("report", str(path), "--out", "page", "--json", cwd=tmp_path)
    assert reported.code == 0, reported.err
    assert json.loads(reported.out)["answers_total"] == 4
    assert (tmp_path / "page" / "report.html").exists()


async def test_json_on_stdout_and_nothing_else(endpoint: Endpoint, tmp_path: Path) -> None:
    ended = await bench("sweep", "--url", endpoint.url, "--out", "a.jsonl", "--json", *QUICK, cwd=tmp_path)
    body = json.loads(ended.out)
    assert set(body["lengths"]) == {"64", "128"}
    assert (body["answers_equal"], body["answers_total"]) == (4, 4)


async def test_failed_requests_fail_the_command_and_keep_the_rest(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.fail_at = ("off", 2)
    ended = await bench("sweep", "--url", endpoint.url, "--out", "a.jsonl", *QUICK, cwd=tmp_path)
    assert ended.code == 1
    assert "neuron-pd: error: 2 of 8 requests failed; the first: HTTP 503: no prefill engine is ready" in ended.err
    assert len(read_run(tmp_path / "a.jsonl").records) == 8
    assert "note: 2 of 8 requests failed" in ended.out


async def test_ctrl_c_keeps_what_was_measured(endpoint: Endpoint, tmp_path: Path) -> None:
    process = await start("sweep", "--url", endpoint.url, "--out", "a.jsonl", *QUICK, cwd=tmp_path)
    assert process.stderr is not None
    while b"turn 2" not in await process.stderr.readline():  # OFF, the second turn at 64 tokens
        pass
    endpoint.stall = asyncio.Event()
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    endpoint.stall.set()
    kept = read_run(tmp_path / "a.jsonl").records
    assert process.returncode == 130
    assert 2 <= len(kept) < 8
    assert f"interrupted: {len(kept)} measured requests are kept; go on with --resume a.jsonl" in err.decode()
    assert b"TTFT" in out
    assert b"Traceback" not in err


async def test_an_interrupted_run_is_gone_on_with(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.fail_at = ("on", 2)
    first = await bench("sweep", "--url", endpoint.url, "--out", "run", "--no-warm-up", *QUICK, cwd=tmp_path)
    assert first.code == 1
    before = read_run(tmp_path / "run")
    endpoint.fail_at = None
    endpoint.requests.clear()
    again = await bench("sweep", "--resume", "run", "--stats-json-output", "stats.json", cwd=tmp_path)
    assert again.code == 0, again.err
    run = read_run(tmp_path / "run")
    # Only the leg that failed was measured again; the other is as it was.
    assert {request["off"] for request in endpoint.requests if request["max_tokens"] == 2} == {False}
    assert len(run.records) == 8
    assert [r for r in run.records if r.leg == "off"] == [r for r in before.records if r.leg == "off"]
    assert all(record.ok for record in run.records)
    assert len(run.header["resumed"]) == 1
    assert len(json.loads((tmp_path / "stats.json").read_text())) == 8
    endpoint.requests.clear()
    assert (await bench("sweep", "--resume", "run/records.jsonl", cwd=tmp_path)).code == 0
    assert [r for r in endpoint.requests if r["max_tokens"] == 2] == []


async def test_failures_within_the_share_allowed_pass(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.fail_at = ("off", 2)
    arguments = ("sweep", "--url", endpoint.url, *QUICK, "--max-errors")
    assert (await bench(*arguments, "0.3", "--out", "a", cwd=tmp_path)).code == 0
    assert (await bench(*arguments, "0.2", "--out", "b", cwd=tmp_path)).code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "--url", "127.0.0.1:8000"), "'127.0.0.1:8000' is not a URL: write it like http://127.0.0.1:8000"),
        (("sweep", "--url", "http://127.0.0.1:1"), "no server answers at http://127.0.0.1:1: start one with"),
        (("sweep", "--lengths", "1024,many"), "--lengths '1024,many' is not a list of token counts"),
        (("sweep", "--think", "soon"), "--think 'soon' is not a list of numbers: write it like --think 1,4"),
        (("sweep", "--rate", "1", "--concurrency", "2"), "--rate and --concurrency are two kinds of load"),
        (("sweep", "--workload", "absent.json"), "--workload absent.json is none of plain, agent"),
        (("sweep", "--resume", "other.txt"), "other.txt holds no bench records"),
        (("sweep", "--emulate-link", "fast"), "--emulate-link 'fast' is not a rate: write it like 1gbit"),
        (("sweep", "--emulate-link", "1gbit", "--url", "http://h:1"), "starts engines of its own: leave out the URLs"),
        (("sweep", "--recompute-threshold", "auto"), "are for the engines that --emulate-link starts"),
        (("sweep", "--out", "old.jsonl"), "old.jsonl exists already: name another place with --out, or go on with"),
        (("sweep", "--turns", "1"), "a conversation needs at least 2 turns"),
        (("report",), "name the records of one run, or --compare A B, or --stats LEG=FILE"),
        (("report", "--stats", "stats.json"), "--stats 'stats.json' names no leg: write it like --stats on=FILE"),
        (("report", "absent.jsonl"), "cannot read absent.jsonl: No such file or directory"),
        (("report", "other.txt"), "other.txt holds no bench records"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "other.txt").write_text("hello\n")
    (tmp_path / "old.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["neuron-pd", "bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert err.startswith("neuron-pd: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert out == ""
    assert not (tmp_path / "results").exists()


async def test_what_the_server_cannot_take_is_exit_2(endpoint: Endpoint, tmp_path: Path) -> None:
    for arguments, message in (
        (("--model", "Other"), "does not serve 'Other': name one of Tiny"),
        (("--lengths", "1k,8k"), "grows to about 8930, and Tiny takes 4096"),
    ):
        ended = await bench("sweep", "--url", endpoint.url, *arguments, cwd=tmp_path)
        assert (ended.code, ended.out) == (2, "")
        assert message in ended.err
    assert not (tmp_path / "results").exists()


async def test_report_lies_beside_the_records(tmp_path: Path) -> None:
    records_file(tmp_path / "run.jsonl")
    ended = await bench("report", "run.jsonl", cwd=tmp_path)
    assert ended.code == 0
    assert "report: run/report.html" in ended.err
    assert "1,524" in ended.out


async def test_two_runs_are_compared(tmp_path: Path) -> None:
    records_file(tmp_path / "a.jsonl")
    records_file(tmp_path / "b.jsonl")
    ended = await bench("report", "--compare", "a.jsonl", "b.jsonl", "--out", "out", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "1.0× (1.0–1.0)" in ended.out
    assert (tmp_path / "out" / "compare.html").exists()
    as_json = await bench("report", "--compare", "a.jsonl", "b.jsonl", "--json", cwd=tmp_path)
    assert [one["leg"] for one in json.loads(as_json.out)] == ["off", "off", "on", "on"]


async def test_statistics_of_vllms_benchmark_are_reported_and_written(tmp_path: Path) -> None:
    records_file(tmp_path / "run.jsonl")
    written = await bench("report", "run.jsonl", "--stats-json-output", "stats.json", cwd=tmp_path)
    assert written.code == 0, written.err
    ended = await bench("report", "--stats", "on=stats.json", "--out", "article", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "report: article/report.html" in ended.err


async def test_a_run_without_requests_has_no_report(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "run.jsonl", {}):
        pass
    ended = await bench("report", "run.jsonl", cwd=tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert "there is no measured request: run the sweep again" in ended.err
