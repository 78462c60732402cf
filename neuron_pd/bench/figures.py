"""Figures from records: pure functions, medians, milliseconds and tokens.

A conversation's first turn is cold in both legs, so the comparison is over the turns from the second on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from neuron_pd.bench.records import OFF, ON, Record

Number = Callable[[Record], float | None]


@dataclass(frozen=True, slots=True)
class LengthRow:
    """One prompt length: medians over the turns from the second on; None where nothing was measured.

    `length` is the planned length of the first prompt in tokens, `prompt_tokens` the median of the prompts that these
    figures are over. `prefill_ms` is the whole prefill leg, `transfer_ms_on` the D→P read inside it and
    `transfer_bytes_on` its size. `reused_tokens` were read from D, `verified_tokens` matched P's own prompt.
    """

    length: int
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

    @property
    def speedup(self) -> float | None:
        """TTFT without reuse over TTFT with it."""
        return _ratio(self.ttft_ms_off, self.ttft_ms_on)

    @property
    def prefill_speedup(self) -> float | None:
        return _ratio(self.prefill_ms_off, self.prefill_ms_on)

    @property
    def compute_ms_on(self) -> float | None:
        """The prefill leg with reuse, less the transfer: computing the suffix, and everything around it."""
        if self.prefill_ms_on is None:
            return None
        return max(0.0, self.prefill_ms_on - (self.transfer_ms_on or 0.0))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ttft_speedup": self.speedup}


def later_turns(records: Iterable[Record], leg: str) -> list[Record]:
    """The turns of one leg that the comparison is over: answered, and not the first of their conversation."""
    return [record for record in records if record.leg == leg and record.turn > 1 and record.ok]


def summary(records: Sequence[Record]) -> list[LengthRow]:
    """One row for each prompt length, shortest first."""
    lengths = sorted({record.length for record in records})
    return [_row(length, [record for record in records if record.length == length]) for length in lengths]


def _row(length: int, records: list[Record]) -> LengthRow:
    off, on = later_turns(records, OFF), later_turns(records, ON)
    return LengthRow(
        length=length,
        turns_off=len(off),
        turns_on=len(on),
        prompt_tokens=_whole(_median(off + on, lambda record: record.prompt_tokens)),
        ttft_ms_off=_median(off, lambda record: record.ttft_ms),
        ttft_ms_on=_median(on, lambda record: record.ttft_ms),
        prefill_ms_off=_median(off, lambda record: record.prefill_ms),
        prefill_ms_on=_median(on, lambda record: record.prefill_ms),
        transfer_ms_on=_median(on, transfer_ms),
        transfer_bytes_on=_whole(_median(on, transfer_bytes)),
        reused_tokens=_whole(_median(on, lambda record: record.report.reused if record.report else None)),
        verified_tokens=_whole(_median(on, lambda record: record.report.verified if record.report else None)),
    )


def transfer_ms(record: Record) -> float | None:
    """The turn's D→P read in milliseconds: 0.0 where nothing was read, None where it is not known."""
    return None if record.read_back is None else record.read_back.mean_ms


def transfer_bytes(record: Record) -> float | None:
    return None if record.read_back is None else record.read_back.bytes


def answers(records: Iterable[Record]) -> tuple[int, int]:
    """How many ON answers equal the OFF answer to the very same messages, of how many that have an OFF counterpart.

    A turn whose history differs, because an earlier answer did, counts as not equal.
    """
    sides: dict[str, dict[tuple[int, int, int], Record]] = {OFF: {}, ON: {}}
    for record in records:
        if record.ok:
            sides[record.leg][record.length, record.repeat, record.turn] = record
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
    if any(record.report and record.report.local for record in records):
        found.append("The prefill engine found prompts in its own prefix cache: OFF is not a full recompute.")
    on = later_turns(records, ON)
    unused = [record for record in on if record.report and not record.report.reused]
    if unused:
        found.append(f"{len(unused)} of {len(on)} ON turns reused nothing (see the decisions).")
    equal, total = answers(records)
    if equal < total:
        found.append(f"{total - equal} of {total} ON answers differ from OFF; in float32 all must be equal.")
    return found


def demo_json(records: Sequence[Record]) -> dict[str, Any]:
    """The figures as `neuron-pd demo --json` and `bench sweep --json` write them."""
    equal, total = answers(records)
    return {
        "lengths": {str(row.length): row.as_json() for row in summary(records)},
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
