from dataclasses import replace

from neuron_pd.bench import figures
from neuron_pd.bench.figures import LengthRow
from neuron_pd.bench.records import Cell, Phases, Setting, Transfers
from neuron_pd.bench.spread import Interval, Ratio
from neuron_pd.core.transfer import TurnReport

from .making import both_legs, read, record, report


def test_medians_over_the_turns_from_the_second_on() -> None:
    first, second = figures.summary(both_legs())
    assert first == LengthRow(
        setting=Setting(1024),
        turns_off=2,
        turns_on=2,
        prompt_tokens=1524,
        ttft_ms_off=2500.0,
        ttft_ms_on=312.5,
        prefill_ms_off=2000.0,
        prefill_ms_on=250.0,
        transfer_ms_on=20.0,
        transfer_bytes_on=924_000,
        reused_tokens=924,
        verified_tokens=924,
        content_ms_off=2750.0,
        content_ms_on=562.5,
        ttft_spread_off=Interval(2250.0, 2750.0),
        ttft_spread_on=Interval(281.25, 343.75),
        gain=Ratio(8.0, 8.0, 8.0),
    )
    assert (first.speedup, first.compute_ms_on) == (8.0, 230.0)
    assert (second.length, second.ttft_ms_off, second.ttft_ms_on) == (2048, 5000.0, 625.0)


def test_failed_turns_are_left_out() -> None:
    records = [record(ttft=0.5), record(ttft=9.0, turn=3, error="broke"), record(ttft=0.75, turn=4)]
    (row,) = figures.summary(records)
    assert (row.turns_on, row.ttft_ms_on) == (2, 625.0)
    assert figures.warnings(records)[0] == "1 of 3 requests failed; the figures are over the others."


def test_what_was_not_measured_is_none_not_zero() -> None:
    (row,) = figures.summary([record(server_timing={}, first_token=None)])
    assert (row.ttft_ms_off, row.ttft_ms_on, row.prefill_ms_on, row.compute_ms_on) == (None,) * 4
    assert (row.transfer_ms_on, row.reused_tokens, row.speedup) == (None, None, None)
    assert figures.summary([]) == []


def test_transfer_time_is_that_of_one_read_and_bytes_are_all_of_them() -> None:
    (row,) = figures.summary([record(read_back=read(20.0, 4000, count=8))])  # eight ranks side by side
    assert (row.transfer_ms_on, row.transfer_bytes_on) == (20.0, 4_000_000)


def test_answers_are_compared_by_history_and_text() -> None:
    records = both_legs()
    assert figures.answers(records) == (6, 6)
    changed = [replace(r, reply="else") if (r.leg, r.length, r.turn) == ("on", 1024, 2) else r for r in records]
    assert figures.answers(changed) == (5, 6)
    forked = [replace(r, history="else") if (r.leg, r.length, r.turn) == ("on", 1024, 3) else r for r in changed]
    assert figures.answers(forked) == (4, 6)


def test_answers_without_a_counterpart_do_not_count() -> None:
    records = both_legs()
    assert figures.answers([r for r in records if r.leg == "on"]) == (0, 0)
    assert figures.answers([r for r in records if (r.leg, r.turn) != ("off", 3)]) == (4, 4)
    failed = [replace(r, error="broke") if (r.leg, r.turn) == ("on", 3) else r for r in records]
    assert figures.answers(failed) == (4, 4)


def test_decisions_of_the_later_on_turns() -> None:
    records = [*both_legs(), record(report=report(0)), record(report=None)]
    assert figures.decisions(records) == {"read_back: verified": 4, "recompute: not_offered": 1, "no report": 1}


def test_warnings_say_what_the_figures_do_not_mean() -> None:
    assert figures.warnings(both_legs()) == []
    dishonoured = figures.warnings([record("off", report=report(500))])
    assert dishonoured == ["OFF turns reused KV: the proxy does not honour X-Neuron-PD-Reuse, so OFF is no baseline."]
    cached = figures.warnings([record("off", report=report(0, local=512))])
    assert cached[0].startswith("The prefill engine found prompts in its own prefix cache")
    assert figures.warnings([record(report=report(0))]) == ["1 of 1 ON turns reused nothing (see the decisions)."]
    differing = [record("off", reply="a"), record("on", reply="b", report=report(500))]
    assert figures.warnings(differing) == ["1 of 1 ON answers differ from OFF; in float32 all must be equal."]


def test_demo_json() -> None:
    body = figures.demo_json(both_legs())
    assert (body["answers_equal"], body["answers_total"]) == (6, 6)
    assert list(body["lengths"]) == ["1024", "2048"]
    wanted = {
        "ttft_ms_off": 2500.0,
        "ttft_ms_on": 312.5,
        "prefill_ms_off": 2000.0,
        "prefill_ms_on": 250.0,
        "transfer_ms_on": 20.0,
        "reused_tokens": 924,
        "prompt_tokens": 1524,
        "ttft_speedup": 8.0,
    }
    assert wanted.items() <= body["lengths"]["1024"].items()


def test_loads_and_think_times_are_rows_of_their_own() -> None:
    records = [record(think=think, concurrency=n, turn=t) for think in (0.0, 30.0) for n in (1, 4) for t in (1, 2)]
    rows = figures.summary(records)
    assert [row.setting for row in rows] == [
        Setting(1024, 1),
        Setting(1024, 4),
        Setting(1024, 1, think=30.0),
        Setting(1024, 4, think=30.0),
    ]
    assert [row.turns_on for row in rows] == [1, 1, 1, 1]
    body = figures.demo_json(records)
    assert (list(body["lengths"]), len(body["rows"])) == (["1024"], 4)
    assert body["lengths"]["1024"]["think"] == 0.0


def test_conversations_with_lengths_of_their_own_are_grouped_by_their_prompts() -> None:
    records = [record(length=0, prompt_tokens=tokens) for tokens in (600, 1000, 1024, 5000)]
    assert [(row.length, row.turns_on) for row in figures.summary(records)] == [(512, 2), (1024, 1), (4096, 1)]


def test_the_split_adds_up_to_what_the_client_saw() -> None:
    made = record(
        ttft=0.5,
        head=100.42,
        server_timing={"acquire": 6.0, "prefill": 400.0},
        read_back=read(40.0, 900),
        hand_off=read(5.0, 100),
        prefill_phases=Phases(1, 0.380, 0.060, 0.300),
        decode_phases=Phases(1, 0.070, 0.012, 0.050),
    )
    (row,) = figures.summary([made, record(turn=3)])  # of the second turn, the engines' part is not known
    split = row.split_on
    assert split is not None
    assert split.turns == 1
    assert {name: round(ms, 6) for name, ms in split.parts.items()} == {
        "transfer": 40.0,
        "compute": 300.0,
        "acquire": 6.0,
        "prefill_wait": 20.0,
        "prefill_api": 40.0,
        "decode_api": 14.0,
        "hand_off": 5.0,
        "decode_wait": 7.0,
        "first_step": 50.0,
        "delivery": 8.0,
    }
    assert (round(split.total, 6), round(split.error, 6)) == (490.0, -0.02)
    body = row.as_json()["split_on"]
    assert body["shares"]["compute"] == 300 / split.total
    assert round(sum(body["shares"].values()), 9) == 1.0


def test_transfers_of_requests_under_way_together_are_those_of_their_cells() -> None:
    setting = Setting(1024, 4)
    records = [record(concurrency=4, read_back=None, turn=turn) for turn in (2, 3)]
    cells = [Cell(leg, setting, 0, 8, 0, 9.0, Transfers(4, 0.2, 4e6), None) for leg in ("on", "on", "off")]
    (row,) = figures.summary(records, cells)
    assert (row.transfer_ms_on, row.transfer_bytes_on) == (50.0, 1_000_000)


def test_a_direct_turn_reuses_what_d_holds() -> None:
    direct = TurnReport("direct", "cost", 1000, 900, 0, 0, 900)
    assert figures.held(record(report=direct)) == 900
    assert figures.held(record(report=report(500))) == 500
    assert figures.warnings([record(report=direct)]) == []
