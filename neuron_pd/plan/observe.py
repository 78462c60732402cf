"""Points for a calibration out of bench records: what each measured turn did, and how long its parts took."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any

from neuron_pd.bench.records import Record, Run
from neuron_pd.bench.records_file import read_run
from neuron_pd.core.cost import fit
from neuron_pd.errors import UsageError
from neuron_pd.plan.calibration import DecodeCost, Point
from neuron_pd.plan.turn import Layout, Quantity, Turn


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured turn of the conversation that began with `length` tokens. `first` is the conversation's first turn."""

    leg: str
    length: int
    first: bool
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Observations:
    """What runs of one model on one kind of machine say. `layout` and `pool_tokens` are the first run's."""

    model: str
    accelerator: str
    layout: Layout
    pool_tokens: int
    decode: DecodeCost
    turns: Sequence[Observation]
    commands: Sequence[str]

    @property
    def points(self) -> list[Point]:
        return [point for turn in self.turns for point in turn.points]


def runs_in(folder: Path) -> list[Run]:
    """Every records file (`*.jsonl`) of a folder. UsageError when there is none."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise UsageError(
            f"{folder} holds no bench records (*.jsonl): run `neuron-pd bench sweep --out {folder}/run.jsonl`"
        )
    return [read_run(file) for file in files]


def observe(runs: Sequence[Run]) -> Observations:
    """Read the runs, without turns that failed, that the servers gave no account of, or that had to wait for another.

    UsageError when the runs do not fit together or lack what a calibration needs.
    """
    headers = [run.header for run in runs]
    engines = [header["engines"].get("decode") or {} for header in headers]
    alone = [_alone(run.records) for run in runs]
    _only("link", {record.link for records in alone for record in records})
    layouts = [_layout(engine, records) for engine, records in zip(engines, alone, strict=True)]
    turns = [_observation(record, layout) for layout, records in zip(layouts, alone, strict=True) for record in records]
    return Observations(
        model=_only("model", {str(header["model"]["name"]) for header in headers}),
        accelerator=_only("accelerator", {str(engine.get("accelerator", "")) for engine in engines}),
        layout=layouts[0],
        pool_tokens=int(engines[0].get("kv_blocks", 0)) * layouts[0].block_size,
        decode=_decode_cost([run.records for run in runs]),
        turns=[turn for turn in turns if turn is not None],
        commands=[str(header.get("command", "")) for header in headers],
    )


def _only(what: str, values: set[str]) -> str:
    if len(values) > 1:
        raise UsageError(
            f"the records are of more than one {what} ({', '.join(sorted(values))}): calibrate each by itself"
        )
    return next(iter(values))


def _alone(records: Iterable[Record]) -> list[Record]:
    """The turns that waited for no other: no request of the same run was under way before their first token."""
    ok = sorted((record for record in records if record.ok and record.first_token), key=lambda record: record.started)
    found, busy_until = [], float("-inf")
    for record, following in zip(ok, [*ok[1:], None], strict=True):
        undisturbed = following is None or following.started >= (record.first_token or 0)
        if record.started >= busy_until and undisturbed:
            found.append(record)
        busy_until = max(busy_until, record.ended)
    return found


def _layout(engine: Mapping[str, Any], records: Iterable[Record]) -> Layout:
    """From what was read back. The block size is the engine's word; else what every reused prefix is a multiple of."""
    read = [
        (record.report.reused, record.read_back)
        for record in records
        if record.report and record.report.reused and record.read_back and record.read_back.bytes
    ]
    if not read:
        raise UsageError(
            "no turn of a run read KV back with its bytes counted: "
            "run `bench sweep` with --prefill-url and --decode-url, and not with --leg off"
        )
    block_size = int(engine.get("block_size") or gcd(*(tokens for tokens, _ in read)))
    return Layout(
        bytes_per_token=median(moved.bytes / tokens for tokens, moved in read),
        block_size=block_size,
        descriptors_per_block=median(moved.descriptors / tokens for tokens, moved in read) * block_size,
    )


def _observation(record: Record, layout: Layout) -> Observation | None:
    report = record.report
    if report is None or record.hand_off is None or record.ttft_ms is None or record.prefill_ms is None:
        return None
    if report.reused and record.read_back:
        blocks = report.reused / layout.block_size
        layout = replace(layout, descriptors_per_block=record.read_back.descriptors / blocks)
    lacking = round(record.hand_off.bytes / layout.bytes_per_token)
    turn = Turn(report.prompt, report.reused, report.local, max(0, report.prompt - lacking))
    measured = {Quantity.PREFILL: record.prefill_ms, Quantity.TTFT: record.ttft_ms}
    if report.reused and record.read_back and record.read_back.count:
        measured[Quantity.TRANSFER] = record.read_back.mean_ms
    if report.reused and record.server_timing.get("acquire"):
        measured[Quantity.ACQUIRE] = record.server_timing["acquire"]
    points = tuple(Point(quantity, turn, ms / 1000, layout) for quantity, ms in measured.items() if ms > 0)
    return Observation(record.leg, record.length, record.turn == 1, points)


def _decode_cost(runs: Sequence[Sequence[Record]]) -> DecodeCost:
    rows, values = [], []
    for records in runs:
        ended = [record for record in records if record.ok and record.first_token and (record.reply_tokens or 0) > 1]
        for record in ended:
            assert record.first_token is not None
            assert record.reply_tokens is not None
            seconds = record.ended - record.first_token
            others = sum(_overlap(record, other) for other in ended if other is not record) / seconds
            rows.append((1.0, float(record.prompt_tokens or 0), others))
            values.append(seconds / (record.reply_tokens - 1))
    if not rows:
        raise UsageError("no reply in the records has two tokens: run `bench sweep` with a longer --reply-tokens")
    return DecodeCost(*fit(rows, values))


def _overlap(one: Record, other: Record) -> float:
    """Seconds during which both streamed their replies."""
    start = max(one.first_token or 0, other.first_token or 0)
    return max(0.0, min(one.ended, other.ended) - start)


def medians(turns: Iterable[Observation]) -> dict[tuple[Quantity, str, int], list[Point]]:
    """Points of the turns from the second on, by quantity, leg and length: the groups whose medians a report shows."""
    groups: dict[tuple[Quantity, str, int], list[Point]] = defaultdict(list)
    for turn in turns:
        for point in turn.points if not turn.first else ():
            groups[point.quantity, turn.leg, turn.length].append(point)
    return dict(sorted(groups.items()))
