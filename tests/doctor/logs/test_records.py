from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.doctor.logs.kinds import DECLINED, Filter, is_decline, is_read_back, is_serious, is_transfer
from neuron_pd.doctor.logs.records import Record, records
from tests.docs.pages import ROOT

NOW = datetime(2026, 11, 30, 12, 0)
# As vLLM 0.32, uvicorn, our proxy and journalctl --output=short-iso write them.
VLLM = (
    "(EngineCore pid=9237) INFO 11-30 10:59:38 [reuse.py:266] neuron-pd: turn request=cmpl-a3b6-0 path=read_back "
    "reason=verified prompt=464 offered=384 verified=384 reused=384 local=0"
)
UVICORN = '(APIServer pid=9190) INFO:     127.0.0.1:60122 - "POST /v1/completions HTTP/1.1" 200 OK'
PROXY = (
    "2026-11-30 10:59:38,641 INFO neuron_pd.proxy: Prefill done in 115ms cache HIT path=read_back reason=verified "
    "reused=384 prompt=464 status=200 total=160ms"
)
METRICS = "(APIServer pid=9190) INFO 11-30 10:59:43 [metrics.py:103] KV Transfer metrics: Num successful transfers=1"
JOURNAL = f"2026-11-30T10:59:38+0000 node-1 neuron-pd-decode[4711]: {METRICS}"
AT = datetime(2026, 11, 30, 10, 59, 38)


def one(*lines: str) -> Record:
    (record,) = [record for record in records(lines, "prefill", NOW) if record is not None]
    return record


def test_vllms_lines() -> None:
    record = one(VLLM)
    assert (record.source, record.time, record.level) == ("prefill", AT, "INFO")
    assert record.text.startswith("neuron-pd: turn request=cmpl-a3b6-0 path=read_back")


def test_the_proxys_lines() -> None:
    record = one(PROXY)
    assert (record.time, record.level, record.text[:12]) == (AT, "INFO", "Prefill done")


def test_uvicorns_lines_have_the_time_of_the_one_before() -> None:
    before, access = records([VLLM, UVICORN], "prefill", NOW)
    assert before is not None
    assert access is not None
    assert (access.time, access.text) == (AT, '127.0.0.1:60122 - "POST /v1/completions HTTP/1.1" 200 OK')


def test_the_journal_says_whose_a_line_is() -> None:
    record = one(JOURNAL)
    assert (record.source, record.time) == ("decode", AT + timedelta(seconds=5))
    assert is_transfer(record)


def test_a_traceback_belongs_to_its_record() -> None:
    record = one(
        "(EngineCore pid=1) ERROR 11-30 10:59:38 [core.py:1] it failed",
        "(EngineCore pid=1) Traceback (most recent call last):",
        "ValueError: x",
    )
    assert record.text == "it failed\nTraceback (most recent call last):\nValueError: x"


def test_a_terminal_is_not_told_what_to_do() -> None:
    shown = str(one("INFO 11-30 10:59:38 [x.py:1] request=\x1b]0;title\x07 \x9b31m", "\tin ö"))
    assert shown.endswith("request=]0;title 31m\n\tin ö")


def test_last_years_lines_in_january() -> None:
    (record,) = records(["INFO 12-31 23:59:59 [x.py:1] late"], "prefill", datetime(2027, 1, 1))
    assert record is not None
    assert record.time == datetime(2026, 12, 31, 23, 59, 59)


def test_nothing_new_ends_the_record_under_way() -> None:
    found = list(records([VLLM, None, "more"], "prefill", NOW))
    assert [record and record.level for record in found] == ["INFO", None, ""]


@given(st.lists(st.text(st.characters(exclude_characters="\n"))))
def test_no_line_is_lost_whatever_it_is(lines: list[str]) -> None:
    found = [record for record in records(lines, "x", NOW) if record is not None]
    assert sum(record.text.count("\n") + 1 for record in found) == len(lines)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("neuron-pd: turn request=r path=read_back reason=verified prompt=1", {is_read_back}),
        ("neuron-pd: turn request=r path=recompute reason=mismatch prompt=1", {is_decline}),
        ("Prefill done in 1ms cache MISS path=recompute reason=evicted reused=0", {is_decline}),
        ("Prefill done in 1ms cache MISS path=recompute reason=none reused=0", set()),
        ("neuron-pd: turn request=r path=recompute reason=no_lease prompt=1", set()),
        ("neuron-pd: the lease of r is refused: malformed", {is_decline}),
        ("neuron-pd: lease L expired while read", {is_decline}),
        ("Declining expired remote read for r", {is_decline}),
        ("KV Transfer metrics: Num successful transfers=1", {is_transfer}),
        ("Num KV expired reqs=0", set()),
    ],
)
def test_kinds(text: str, kinds: set[object]) -> None:
    record = Record("prefill", AT, "INFO", text)
    assert {kind for kind in (is_read_back, is_decline, is_transfer, is_serious) if kind(record)} == kinds


def test_filters() -> None:
    record = Record("prefill", AT, "WARNING", "request=cmpl-1 path=read_back")
    assert Filter()(record)
    assert Filter(("read-backs", "transfers"))(record)
    assert not Filter(("declines",))(record)
    assert Filter(("warnings",), ("cmpl-1", "path"))(record)
    assert not Filter((), ("cmpl-2",))(record)
    assert Filter(since=AT)(record)
    assert not Filter(since=AT + timedelta(seconds=1))(record)
    assert not Filter(since=AT)(Record("prefill", None, "", "before the first time"))


def test_the_marks_of_a_decline_are_the_connectors_own_words() -> None:
    source = "".join(path.read_text() for path in (ROOT / "neuron_pd" / "connector").glob("*.py"))
    assert [mark for mark in DECLINED if mark not in source] == ["Declining expired remote read"]  # upstream's
    assert "neuron-pd: lease %s expired" in source
