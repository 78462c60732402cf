"""Figures from records: pure functions, medians, milliseconds and tokens.

A conversation's first turn is cold in both legs, so the comparison is over the turns from the second on.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from neuron_pd.bench.records import OFF, ON, Cell, Record, Setting, Transfers
from neuron_pd.bench.split import Split, split
from neuron_pd.bench.spread import Interval, Ratio, quartiles, ratio_of_medians
from neuron_pd.core.decision import Path

Number = Callable[[Record], float | None]


@dataclass(frozen=True, slots=True)
class LengthRow:
    """One setting: medians over the turns from the second on; None where nothing was measured.

    The setting's length is that of the first prompt in tokens, as planned; where conversations have lengths of their
    own, the power of two below a turn's prompt. `prompt_tokens` is the median of the prompts that these figures are
    over. `content_ms` is the time to the first visible text, `prefill_ms` the whole prefill leg, `transfer_ms_on` the
    D→P read inside it and `transfer_bytes_on` its size. `reused_tokens` were read from D, `verified_tokens` matched P's
    own prompt. The spreads are quartiles, `gain` is the ratio of the TTFTs, `split_on` where the TTFT with reuse goes.
    """

    setting: Setting
    turns_off: int
    turns_on: int
    prompt_tokens: int | None
    ttft_ms_off: float | None
    ttft_ms_on: float | None
    prefill_ms_off: float | None
    prefill_ms_on: float | None
    transfer_ms_on: float | None
    transfer_bytes_on: int | None
    reused_tokens: int | None
    verified_tokens: int | None
    content_ms_off: float | None = None
    content_ms_on: float | None = None
    ttft_spread_off: Interval | None = None
    ttft_spread_on: Interval | None = None
    gain: Ratio | None = None
    split_on: Split | None = None

    @property
    def length(self) -> int:
        return self.setting.length

    @property
    def speedup(self) -> float | None:
        """TTFT without reuse over TTFT with it."""
        return _ratio(self.ttft_ms_off, self.ttft_ms_on)

    @property
    def compute_ms_on(self) -> float | None:
        """The prefill leg with reuse, less the transfer: computing the suffix, and everything around it."""
        if self.prefill_ms_on is None:
            return None
        return max(0.0, self.prefill_ms_on - (self.transfer_ms_on or 0.0))

    def as_json(self) -> dict[str, Any]:
        body = {name: value for name, value in asdict(self).items() if name not in ("setting", "gain", "split_on")}
        return {
            **self.setting._asdict(),
            **body,
            "ttft_speedup": self.speedup,
            "ttft_speedup_interval": self.gain and [self.gain.low, self.gain.high],
            "split_on": self.split_on and self.split_on.as_json(),
        }


def later_turns(records: Iterable[Record], leg: str) -> list[Record]:
    """The turns of one leg that the comparison is over: answered, and not the first of their conversation."""
    return [record for record in records if record.leg == leg and record.turn > 1 and record.ok]


def same_words(record: Record) -> Hashable:
    """Turns with the same of these are the same turn of the same conversation, in another leg or run."""
    return record.setting, record.repeat, record.index, record.turn


def setting_of(record: Record) -> Setting:
    """The row that a turn belongs to."""
    if record.length or not record.prompt_tokens:
        return record.setting
    return record.setting._replace(length=1 << (record.prompt_tokens.bit_length() - 1))


def summary(records: Sequence[Record], cells: Sequence[Cell] = ()) -> list[LengthRow]:
    """One row for each setting, loads in the order in which they were measured, then by length.

    Where requests were under way together, an engine's transfers belong to none of them: `transfer_ms_on` and
    `transfer_bytes_on` are then means over the reads of the setting's `cells`.
    """
    groups: dict[Setting, list[Record]] = {}
    for record in records:
        groups.setdefault(setting_of(record), []).append(record)
    reads = {setting: _reads(cell for cell in cells if (cell.leg, cell.setting) == (ON, setting)) for setting in groups}
    loads = list(dict.fromkeys(setting[1:] for setting in groups))
    ordered = sorted(groups, key=lambda one: (loads.index(one[1:]), one.length))
    return [_row(setting, groups[setting], reads[setting]) for setting in ordered]


def _reads(cells: Iterable[Cell]) -> Transfers:
    """All reads of some cells."""
    known = [cell.read_back for cell in cells if cell.read_back is not None]
    return Transfers(*(sum(getattr(one, f.name) for one in known) for f in fields(Transfers)))


def _row(setting: Setting, records: list[Record], reads: Transfers) -> LengthRow:
    off, on = later_turns(records, OFF), later_turns(records, ON)
    if any(record.read_back for record in on) or not reads.count:
        transfer, size = _median(on, transfer_ms), _median(on, transfer_bytes)
    else:
        transfer, size = reads.mean_ms, reads.bytes / reads.count
    ttft_off, ttft_on = (ttfts(side) for side in (off, on))
    return LengthRow(
        setting=setting,
        turns_off=len(off),
        turns_on=len(on),
        prompt_tokens=_whole(_median(off + on, lambda record: record.prompt_tokens)),
        ttft_ms_off=_median(off, lambda record: record.ttft_ms),
        ttft_ms_on=_median(on, lambda record: record.ttft_ms),
        prefill_ms_off=_median(off, lambda record: record.prefill_ms),
        prefill_ms_on=_median(on, lambda record: record.prefill_ms),
        transfer_ms_on=transfer,
        transfer_bytes_on=_whole(size),
        reused_tokens=_whole(_median(on, lambda record: record.report.reused if record.report else None)),
        verified_tokens=_whole(_median(on, lambda record: record.report.verified if record.report else None)),
        content_ms_off=_median(off, lambda record: record.content_ms),
        content_ms_on=_median(on, lambda record: record.content_ms),
        ttft_spread_off=quartiles(list(ttft_off.values())),
        ttft_spread_on=quartiles(list(ttft_on.values())),
        gain=ratio_of_medians(ttft_off, ttft_on),
        split_on=split(on),
    )


def ttfts(records: Iterable[Record]) -> dict[Hashable, float]:
    """TTFT of each turn in milliseconds, by what makes turns of two legs or runs the same."""
    return {same_words(record): record.ttft_ms for record in records if record.ttft_ms is not None}


def held(record: Record) -> int:
    """Tokens of the prompt that D held and nobody computed: read by P, or used by D itself on a direct turn."""
    report = record.report
    if report is None:
        return 0
    return report.local if report.path == Path.DIRECT else report.reused


def transfer_ms(record: Record) -> float | None:
    """The turn's D→P read in milliseconds: 0.0 where nothing was read, None where it is not known."""
    return None if record.read_back is None else record.read_back.mean_ms


def transfer_bytes(record: Record) -> float | None:
    return None if record.read_back is None else record.read_back.bytes


def answers(records: Iterable[Record]) -> tuple[int, int]:
    """How many ON answers equal the OFF answer to the very same messages, of how many that have an OFF counterpart.

    A turn whose history differs, because an earlier answer did, counts as not equal.
    """
    sides: dict[str, dict[Hashable, Record]] = {OFF: {}, ON: {}}
    for record in records:
        if record.ok and record.history:
            sides[record.leg][same_words(record)] = record
    pairs = [(sides[OFF][key], on) for key, on in sides[ON].items() if key in sides[OFF]]
    equal = sum(1 for off, on in pairs if (off.history, off.reply) == (on.history, on.reply))
    return equal, len(pairs)


def decisions(records: Iterable[Record]) -> Counter[str]:
    """How the ON turns from the second on were served: "path: reason", and how often."""
    reports = [record.report for record in later_turns(records, ON)]
    return Counter("no report" if report is None else f"{report.path}: {report.reason}" for report in reports)


def warnings(records: Sequence[Record]) -> list[str]:
    """What makes the figures mean less than they seem to, one sentence each."""
    found = []
    if failed := sum(1 for record in records if not record.ok):
        found.append(f"{failed} of {len(records)} requests failed; the figures are over the others.")
    if any(record.report and record.report.reused for record in records if record.leg == OFF):
        found.append("OFF turns reused KV: the proxy does not honour X-Neuron-PD-Reuse, so OFF is no baseline.")
    if any(record.report and record.report.local and record.report.path != Path.DIRECT for record in records):
        found.append("The prefill engine found prompts in its own prefix cache: OFF is not a full recompute.")
    on = later_turns(records, ON)
    unused = [record for record in on if record.report and not held(record)]
    if unused:
        found.append(f"{len(unused)} of {len(on)} ON turns reused nothing (see the decisions).")
    equal, total = answers(records)
    if equal < total:
        found.append(f"{total - equal} of {total} ON answers differ from OFF; in float32 all must be equal.")
    return found


def demo_json(records: Sequence[Record], cells: Sequence[Cell] = ()) -> dict[str, Any]:
    """The figures as `neuron-pd demo --json` and `bench sweep --json` write them."""
    equal, total = answers(records)
    rows = summary(records, cells)
    return {
        "lengths": {str(row.length): row.as_json() for row in rows if row.setting[1:] == rows[0].setting[1:]},
        "rows": [row.as_json() for row in rows],
        "answers_equal": equal,
        "answers_total": total,
    }


def _median(records: Iterable[Record], number: Number) -> float | None:
    values = [value for value in map(number, records) if value is not None]
    return median(values) if values else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None
