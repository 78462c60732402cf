"""From counts to rows."""

import pytest

from neuron_pd.bench.proxy.figures import Burst, Measured, Round, notes, percentile, ratios


def round_of(requests: int, cpu: float = 0.9, engine: float = 0.2, client: float = 0.1, failed: int = 0) -> Round:
    return Round(requests, failed, 1.0, cpu, engine, client)


def test_row() -> None:
    burst = Burst([0.001, 0.002, 0.003, 0.1], 200, 0.01, 1)
    one = Measured("x", [round_of(100), round_of(300), round_of(200)], [burst])
    row = one.row(shared_core=True)
    assert (row["requests_per_s"], row["spread"], row["rounds"]) == (200, [100, 300], [100, 300, 200])
    assert row["cpu_us_per_request"] == 4500
    assert row["cpu_us_per_chunk"] == 50
    assert row["first_byte_ms"] == {"median": 2, "p99": 100}
    assert (row["core_busy"], row["others_busy"], row["failed"]) == (0.9, 0.3, 1)
    assert one.row(shared_core=False)["others_busy"] == 0.2


def test_row_of_a_peer_that_could_not_be_had() -> None:
    row = Measured("x", reason="no network").row(shared_core=True)
    assert row == {"name": "x", "requests_per_s": None, "reason": "no network"}
    assert notes([row]) == ["x was not measured: no network"]


def test_ratios_are_taken_round_by_round() -> None:
    ours = Measured("a", [round_of(100), round_of(400), round_of(90)])
    peer = Measured("b", [round_of(10), round_of(20), round_of(10)])
    assert ratios(ours, peer) == {"median": 10, "least": 9, "most": 20}
    assert ratios(ours, Measured("c")) is None


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (round_of(1), []),
        (round_of(1, engine=0.6, client=0.39), ["used their core up"]),
        (round_of(1, cpu=0.4), ["40% of its core"]),
        (round_of(1, failed=2), ["2 requests failed"]),
    ],
)
def test_notes(one: Round, said: list[str]) -> None:
    found = notes([Measured("x", [one]).row(shared_core=True)])
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))


def test_percentile() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([], 0.5)) == (50, 99, 0)
