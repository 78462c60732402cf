"""The files of an article-style run: statistics, the proxy's log, the prefill node's log."""

import json
from pathlib import Path

import pytest

from neuron_pd.bench import figures
from neuron_pd.bench.article import Sources, parse_transfer_line, read_article
from neuron_pd.errors import UsageError

PROXY = "2026-11-30 06:12:0{n} [INFO] disagg_proxy: [req-{n}] Prefill done in {ms}ms"
PREFILL = (
    "(EngineCore_DP0 pid=77) INFO 11-30 06:12:0{n} [metrics.py:103] KV Transfer metrics: "
    "Num successful transfers={count}, Avg xfer time (ms)={ms}, P90 xfer time (ms)=9.0, "
    "Avg post time (ms)=0.4, P90 post time (ms)=0.5, "
    "Avg MB per transfer={mb}, Throughput (MB/s)=900.0, Avg number of descriptors=64.0, Num failed transfers=0, "
    "Num KV expired reqs=0, Num notifs after expiry=0"
)


def statistics(path: Path, prompt: int, ttft: float, turns: int = 3, start: float = 1000.0) -> Path:
    body = [
        {
            "ttft_ms": ttft + turn,
            "tpot_ms": 5.0,
            "latency_ms": 900.0,
            "start_time_ms": start + 1000.0 * turn,
            "input_num_turns": 2 * turn + 1,
            "input_num_tokens": prompt + 450 * turn,
            "output_num_tokens": 300,
            "conversation_id": "CONV_ID_0",
            "client_id": 0,
        }
        for turn in range(turns)
    ]
    path.write_text(json.dumps(body))
    return path


def log(path: Path, *lines: str) -> Path:
    path.write_text("INFO something else\n" + "\n".join(lines) + "\n")
    return path


def test_both_legs_of_two_lengths(tmp_path: Path) -> None:
    off = [statistics(tmp_path / f"off{n}", 2048 * n + 3, 200.0 * n, start=1e5 * n) for n in (2, 1)]
    on = [statistics(tmp_path / f"on{n}", 2048 * n, 100.0 * n, start=1e5 * n) for n in (1, 2)]
    durations = [150, 60, 62, 290, 80, 82]
    proxy = log(tmp_path / "proxy.log", *(PROXY.format(n=n, ms=ms) for n, ms in enumerate(durations)))
    prefill = log(
        tmp_path / "prefill.log",
        PREFILL.format(n=1, count=2, ms=10.0, mb=16.0),
        PREFILL.format(n=2, count=0, ms=0, mb=0),
        PREFILL.format(n=3, count=2, ms=25.0, mb=32.0),
    )
    run = read_article({"off": Sources(off), "on": Sources(on, [proxy], [prefill])})
    assert run.notes == []
    first, second = figures.summary(run.records)
    assert [row.length for row in (first, second)] == [2051, 4099]
    assert (first.ttft_ms_off, first.ttft_ms_on, first.turns_on) == (pytest.approx(201.5), pytest.approx(101.5), 2)
    assert (first.prefill_ms_on, first.prefill_ms_off) == (61.0, None)
    assert (first.transfer_ms_on, first.transfer_bytes_on) == (10.0, 16 * 2**20)
    assert (second.transfer_ms_on, second.prefill_ms_on, second.compute_ms_on) == (25.0, 81.0, 56.0)
    # The client's statistics hold no text: nothing is said of the answers.
    assert figures.answers(run.records) == (0, 0)


def test_ranks_read_side_by_side(tmp_path: Path) -> None:
    on = statistics(tmp_path / "on", 2048, 100.0)
    prefill = log(tmp_path / "p.log", PREFILL.format(n=1, count=16, ms=10.0, mb=4.0))
    (row,) = figures.summary(read_article({"on": Sources([on], (), [prefill])}).records)
    assert (row.transfer_ms_on, row.transfer_bytes_on) == (10.0, 8 * 4 * 2**20)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    on = statistics(tmp_path / "on", 2048, 100.0)
    short, long = (log(tmp_path / str(n), *[PROXY.format(n=1, ms=n)] * n) for n in (2, 5))
    odd = log(tmp_path / "odd", PREFILL.format(n=1, count=3, ms=10.0, mb=4.0))
    none = log(tmp_path / "none", PREFILL.format(n=1, count=0, ms=0, mb=0))
    assert read_article({"on": Sources([on], [short], [odd])}).notes == [
        "ON: the proxy's log has 2 prefills for 3 requests: left out.",
        "ON: 3 transfers for 2 turns: spread over them in order.",
    ]
    run = read_article({"on": Sources([on], [long], [none])})
    assert run.notes == [
        "ON: of 5 prefills in the proxy's log the last 3 count.",
        "ON: the prefill node's log has no `KV Transfer metrics:` line with a read.",
    ]
    assert [record.prefill_ms for record in run.records] == [5.0, 5.0, 5.0]


def test_lines_that_are_no_transfers() -> None:
    for line in (
        "",
        "KV Transfer metrics: ",
        "KV Transfer metrics: Num successful transfers=many, Avg xfer time (ms)=1",
    ):
        assert parse_transfer_line(line) is None


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    on = statistics(tmp_path / "on", 2048, 100.0)
    with pytest.raises(UsageError, match="cannot read"):
        read_article({"on": Sources([on], [tmp_path / "absent"])})
    (tmp_path / "empty").write_text("[]")
    with pytest.raises(UsageError, match="holds no request"):
        read_article({"on": Sources([tmp_path / "empty"])})
