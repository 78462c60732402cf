from neuron_pd.bench.records import Run, Setting, finished

from .making import cell_of, record


def test_cells_with_failures_are_measured_again() -> None:
    off, on = [record("off"), record("off", turn=3)], [record("on", error="broke")]
    run = Run({}, [*off, *on], [cell_of(off), cell_of(on, failed=1)])
    assert finished(run) == Run({}, off, [cell_of(off)])


def test_settings_in_words() -> None:
    assert str(Setting(4096)) == "4,096 tokens"
    assert str(Setting(0, 0, 0.5, 30.0, "1gbit")) == "0.5/s, think 30 s, 1gbit"
    assert str(Setting(64, 4)) == "64 tokens, 4 at a time"


def test_times_are_derived_from_the_raw_ones() -> None:
    made = record(ttft=0.5)
    assert (made.ttft_ms, made.content_ms, made.prefill_ms) == (500.0, 750.0, 400.0)
    assert record(first_token=None, server_timing={}).ttft_ms is None
    assert record(server_timing={}).prefill_ms is None
