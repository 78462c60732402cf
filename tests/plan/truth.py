"""Bench records of a cluster whose coefficients are known, with noise, and calibrations to plan with."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from neuron_pd.bench.records import OFF, ON, Record, RecordWriter, Transfers
from neuron_pd.core.transfer import TurnReport
from neuron_pd.plan.calibration import Calibration, DecodeCost
from neuron_pd.plan.turn import Account, Coefficients, Turn

BYTES = 16384.0
BLOCK = 128
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
        bytes_per_token=BYTES,
        block_size=BLOCK,
        pool_tokens=131072,
        coefficients=TRUTH,
        decode=DECODE,
        errors={"ttft off": 0.05, "ttft on": 0.1, "transfer on": 0.1},
        sources={"coefficients": "made up"},
    )
    return replace(made, **parts)


def sweep(
    lengths: tuple[int, ...], turns: int = 4, repeats: int = 1, noise: float = 0.0, seed: int = 0
) -> list[Record]:
    """What `bench sweep` would record of that cluster; every time is off by a factor of up to 1 ± `noise`."""
    draw = Random(seed)
    clock, made = 100.0, []
    for length in lengths:
        for repeat in range(repeats):
            for leg in (OFF, ON):
                for number in range(1, turns + 1):
                    record = _turn(leg, length, repeat, number, clock, lambda: draw.uniform(1 - noise, 1 + noise))
                    clock = record.ended + 0.1
                    made.append(record)
    return made


def _turn(leg: str, length: int, repeat: int, number: int, clock: float, noise: Any) -> Record:
    prompt = length + (number - 1) * (USER + REPLY)
    held = max(0, prompt - USER) // BLOCK * BLOCK if number > 1 else 0
    reused = held if leg == ON else 0
    account = Account.of(Turn(prompt, reused, held=held), TRUTH, BYTES)
    first = clock + account.ttft * noise()
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
        ended=first + (REPLY - 1) * DECODE.seconds(prompt, 0) * noise(),
        prompt_tokens=prompt,
        reply_tokens=REPLY,
        server_timing={"acquire": 1000 * account.acquire * noise(), "prefill": 1000 * account.prefill * noise()},
        report=TurnReport("read_back" if reused else "recompute", "verified", prompt, held, held, reused, 0),
        read_back=Transfers(1, account.transfer * noise(), reused * BYTES) if reused else Transfers(),
        hand_off=Transfers(1, 0.003, (prompt - held) * BYTES),
    )


def records_folder(path: Path, records: list[Record], *, engines: bool = True) -> Path:
    """A folder as `bench sweep --out` leaves it."""
    said = {"block_size": BLOCK, "kv_blocks": 1024, "accelerator": "cpu"} if engines else {"vllm": "0.32.0"}
    header = {"command": "neuron-pd bench sweep", "model": {"name": "tiny"}, "engines": {"decode": said}}
    with RecordWriter(path / "run.jsonl", header) as writer:
        for record in records:
            writer.write(record)
    return path
