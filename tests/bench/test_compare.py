from dataclasses import replace

from neuron_pd.bench.compare import compare
from neuron_pd.bench.records import Setting

from .making import both_legs


def test_settings_and_legs_that_both_runs_have() -> None:
    a = both_legs()
    short = [record for record in a if record.length == 1024]
    b = [replace(record, first_token=record.started + (record.ttft_ms or 0) / 2000) for record in short]
    found = compare(a, b)
    assert [(one.setting, one.leg) for one in found] == [(Setting(1024), "off"), (Setting(1024), "on")]
    assert [(one.a_ms, one.b_ms, one.ratio.value) for one in found] == [(2500.0, 1250.0, 2.0), (312.5, 156.25, 2.0)]
    assert found[0].as_json()["interval"] == [2.0, 2.0]
    assert compare(a, []) == []
