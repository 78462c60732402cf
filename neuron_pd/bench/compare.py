"""Two runs beside each other: the ratio of their TTFTs, setting by setting and leg by leg."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from neuron_pd.bench.figures import later_turns, setting_of, ttfts
from neuron_pd.bench.records import OFF, ON, Record, Setting
from neuron_pd.bench.spread import Ratio, ratio_of_medians


@dataclass(frozen=True, slots=True)
class Comparison:
    """Median TTFTs of one leg of one setting in two runs, in milliseconds, and A by B."""

    setting: Setting
    leg: str
    a_ms: float
    b_ms: float
    ratio: Ratio

    def as_json(self) -> dict[str, Any]:
        interval = [self.ratio.low, self.ratio.high]
        values = {"ttft_ms_a": self.a_ms, "ttft_ms_b": self.b_ms, "ratio": self.ratio.value, "interval": interval}
        return {**self.setting._asdict(), "leg": self.leg, **values}


def compare(a: Sequence[Record], b: Sequence[Record]) -> list[Comparison]:
    """What both runs measured; the turns from the second on."""
    found = []
    for leg in (OFF, ON):
        sides = [_by_setting(later_turns(run, leg)) for run in (a, b)]
        for setting in sorted(sides[0].keys() & sides[1].keys()):
            over, under = (ttfts(side[setting]) for side in sides)
            if ratio := ratio_of_medians(over, under):
                found.append(Comparison(setting, leg, median(over.values()), median(under.values()), ratio))
    return found


def _by_setting(records: Sequence[Record]) -> dict[Setting, list[Record]]:
    groups: dict[Setting, list[Record]] = {}
    for record in records:
        groups.setdefault(setting_of(record), []).append(record)
    return groups
