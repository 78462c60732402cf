"""One small real run."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from neuron_pd.bench.proxy.measure import Cores
from neuron_pd.cli.bench_proxy import proxy
from neuron_pd.errors import UsageError


def test_cores() -> None:
    assert Cores.share([4, 5]) == Cores(4, 5, 5)
    assert Cores.share([0, 1, 2, 3]) == Cores(0, 1, 2)
    with pytest.raises(UsageError, match="two cores"):
        Cores.share([0])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_ours_between_fake_engines(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    small = ["--rounds=1", "--seconds=0.2", "--clients=2", "--burst=3", "--chunks=4", "--conversations=1000"]
    result = CliRunner().invoke(proxy, [*small, "--json", str(path)])
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert list(rows) == ["engine alone", "neuron-pd", "neuron-pd, no id sent"]
    for row in rows.values():
        assert row["requests_per_s"] > 0
        assert row["failed"] == 0
        assert row["cpu_us_per_chunk"] > 0
        assert row["first_byte_ms"]["median"] <= row["first_byte_ms"]["p99"]
    assert report["memory"]["conversations"] == 1000
    assert "neuron-pd, no id sent" in result.output


def test_unknown_peers_are_refused() -> None:
    with pytest.raises(UsageError, match="known are example, vllm-router"):
        CliRunner().invoke(proxy, ["--peers", "example,nginx"], catch_exceptions=False, standalone_mode=False)
