from dataclasses import replace

import pytest

from neuron_pd.core.cost import PrefillCost, TransferCost
from neuron_pd.core.decision import Costs, Path, Prompt, Reason, cheapest, choose, expected


@pytest.mark.parametrize(
    ("verified", "local", "threshold", "chosen"),
    [
        (128, 0, 64, (Path.READ_BACK, Reason.VERIFIED)),
        (64, 0, 64, (Path.READ_BACK, Reason.VERIFIED)),
        (63, 0, 64, (Path.RECOMPUTE, Reason.BELOW_THRESHOLD)),
        (128, 65, 64, (Path.RECOMPUTE, Reason.BELOW_THRESHOLD)),
        (128, 64, 64, (Path.READ_BACK, Reason.VERIFIED)),
        (128, 128, 64, (Path.RECOMPUTE, Reason.LOCAL)),
        (128, 256, 0, (Path.RECOMPUTE, Reason.LOCAL)),
        (1, 0, 0, (Path.READ_BACK, Reason.VERIFIED)),
        (0, 0, 0, (Path.RECOMPUTE, Reason.MISMATCH)),
        (0, 128, 64, (Path.RECOMPUTE, Reason.MISMATCH)),
    ],
)
def test_choose(verified: int, local: int, threshold: int, chosen: tuple[Path, Reason]) -> None:
    assert choose(verified, local, threshold) == chosen


COSTS = Costs(
    bytes_per_token=1000,
    prefill=PrefillCost(fixed=0.01, per_token=1e-3),
    read_back=TransferCost(latency=0.005, per_byte=1e-8),
    hand_off=TransferCost(latency=0.005, per_byte=1e-8),
)


def test_expected_seconds_of_each_way():
    ways = expected(Prompt(tokens=1000, held=900), replace(COSTS, direct=PrefillCost(0.02, 2e-3)))
    hand_off = 0.005 + 100 * 1000 * 1e-8
    assert ways[Path.RECOMPUTE] == pytest.approx(0.01 + 1.0 + hand_off)
    assert ways[Path.READ_BACK] == pytest.approx(0.005 + 900 * 1e-5 + 0.01 + 0.1 + hand_off)
    assert ways[Path.DIRECT] == pytest.approx(0.02 + 0.2)
    assert cheapest(ways) is Path.READ_BACK


def test_a_slow_link_makes_computing_cheaper():
    slow = replace(COSTS, read_back=TransferCost(0.005, 1e-5))
    assert cheapest(expected(Prompt(tokens=1000, held=900), slow)) is Path.RECOMPUTE


def test_what_p_holds_already_is_neither_fetched_nor_computed():
    ways = expected(Prompt(tokens=1000, held=600, local=600), COSTS)
    assert Path.READ_BACK not in ways
    assert ways[Path.RECOMPUTE] == pytest.approx(0.01 + 0.4 + 0.005 + 400 * 1e-5)


def test_direct_is_open_only_where_d_may_prefill_and_pays_for_the_replies_it_holds_up():
    turn = Prompt(tokens=1000, held=980)
    assert Path.DIRECT not in expected(turn, COSTS)
    idle = replace(COSTS, direct=PrefillCost(0.01, 1e-3))
    assert cheapest(expected(turn, idle)) is Path.DIRECT
    assert cheapest(expected(turn, replace(idle, others=8))) is Path.READ_BACK
