"""Bench records of a cluster whose coefficients are known, with noise, and calibrations to plan with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from neuron_pd.bench.records import OFF, ON, Record, Transfers
from neuron_pd.bench.records_file import RecordWriter
from neuron_pd.core.transfer import TurnReport
from neuron_pd.plan.calibration import Calibration, DecodeCost
from neuron_pd.plan.turn import Account, Coefficients, Layout, Turn

BYTES = 16384.0
BLOCK = 128
PIECES = 16  # descriptors a block: 8 layers, K and V
LAYOUT = Layout(BYTES, BLOCK, PIECES)
USER, REPLY = 150, 32

TRUTH = Coefficients(
    prefill_fixed=0.02,
    prefill_per_token=4e-4,
    prefill_per_pair=3e-8,
    prompt_per_token=1e-5,
    read_latency=0.002,
    per_byte=3e-10,
    read_wait=0.03,
    acquire=0.004,
    hand_off_fixed=0.05,
    hand_off_per_token=5e-6,
)
DECODE = DecodeCost(0.02, 1e-6)


def calibration(**parts: Any) -> Calibration:
    made = Calibration(
        model="some/model",
        instance="somewhere",
        layout=LAYOUT,
        pool_tokens=131072,
        coefficients=TRUTH,
        decode=DECODE,
        errors={"ttft off": 0.05, "ttft on": 0.1, "transfer on": 0.1},
        sources={"coefficients": "made up"},
    )
    return replace(made, **parts)


def sweep(
    lengths: tuple[int, ...],
    turns: int = 4,
    repeats: int = 1,
    noise: float = 0.0,
    seed: int = 0,
    truth: Coefficients = TRUTH,
    layout: Layout = LAYOUT,
) -> list[Record]:
    """What `bench sweep` would record of that cluster; every time is off by a factor of up to 1 ± `noise`."""
    draw = Random(seed)
    clock, made = 100.0, []
    for length in lengths:
        for repeat in range(repeats):
            for leg in (OFF, ON):
                for number in range(1, turns + 1):
                    record = _turn(leg, length, repeat, number, clock, truth, layout)
                    record = blurred(record, lambda: draw.uniform(1 - noise, 1 + noise))
                    clock = record.ended + 0.1
                    made.append(record)
    return made


def _turn(leg: str, length: int, repeat: int, number: int, clock: float, truth: Coefficients, layout: Layout) -> Record:
    prompt = length + (number - 1) * (USER + REPLY)
    held = layout.whole(prompt - USER) if number > 1 else 0
    reused = held if leg == ON else 0
    account = Account.of(Turn(prompt, reused, held=held), truth, layout)
    first = clock + account.ttft
    pieces = reused * layout.descriptors_per_token
    return Record(
        leg=leg,
        length=length,
        repeat=repeat,
        turn=number,
        conversation=f"{leg}-{length}-{repeat}",
        history=f"{length}/{number}",
        started_at=clock,
        started=clock,
        first_token=first,
        ended=first + (REPLY - 1) * DECODE.seconds(prompt, 0),
        prompt_tokens=prompt,
        reply_tokens=REPLY,
        server_timing={"acquire": 1000 * account.acquire, "prefill": 1000 * account.prefill},
        report=TurnReport("read_back" if reused else "recompute", "verified", prompt, held, held, reused, 0),
        read_back=Transfers(1, account.transfer, reused * BYTES, descriptors=pieces) if reused else Transfers(),
        hand_off=Transfers(1, 0.003, (prompt - held) * BYTES),
    )


def blurred(record: Record, noise: Callable[[], float]) -> Record:
    """The same turn, every time that was measured of it multiplied with a factor of its own."""
    assert record.first_token is not None
    assert record.read_back is not None
    first = record.started + (record.first_token - record.started) * noise()
    return replace(
        record,
        first_token=first,
        ended=first + (record.ended - record.first_token) * noise(),
        server_timing={name: ms * noise() for name, ms in record.server_timing.items()},
        read_back=replace(record.read_back, seconds=record.read_back.seconds * noise()),
    )


def records_folder(
    path: Path, records: list[Record], *, engines: bool = True, name: str = "records.jsonl", block_size: int = BLOCK
) -> Path:
    """A folder as `bench sweep --out` leaves it."""
    said = {"block_size": block_size, "kv_blocks": 1024, "accelerator": "cpu"} if engines else {"vllm": "0.32.0"}
    header = {"command": "neuron-pd bench sweep", "model": {"name": "tiny"}, "engines": {"decode": said}}
    with RecordWriter(path / name, header) as writer:
        for record in records:
            writer.write(record)
    return path
