"""Records with chosen timestamps."""

from dataclasses import replace
from typing import Any

from neuron_pd.bench.records import Cell, Record, Transfers
from neuron_pd.core.transfer import TurnReport


def report(reused: int = 0, verified: int | None = None, local: int = 0, prompt: int = 1000) -> TurnReport:
    path, reason = ("read_back", "verified") if reused else ("recompute", "not_offered")
    verified = reused if verified is None else verified
    return TurnReport(path, reason, prompt, verified, verified, reused, local)


def record(leg: str = "on", length: int = 1024, turn: int = 2, ttft: float = 0.5, **fields: Any) -> Record:
    """A request that began at 100 s and had its first token `ttft` seconds later."""
    made = Record(
        leg=leg,
        length=length,
        repeat=0,
        turn=turn,
        conversation=f"{leg}-{length}",
        history=f"{length}/{turn}",
        started_at=1.8e9,
        started=100.0,
        ended=102.0,
        first_token=100.0 + ttft,
        first_content=100.25 + ttft,
        chunks=(100.0 + ttft, 100.25 + ttft, 102.0),
        prompt_tokens=length,
        reply_tokens=32,
        reply=f"answer {length}/{turn}",
        finish_reason="length",
        status=200,
        server_timing={"acquire": 4.0, "prefill": 800 * ttft},
    )
    return replace(made, **fields)


def read(ms: float, tokens: int, count: int = 1) -> Transfers:
    return Transfers(count=count, seconds=ms * count / 1000, bytes=tokens * 1000)


def both_legs() -> list[Record]:
    """Two lengths, three turns, both legs: OFF takes a second a 1024 tokens, ON a tenth of that."""
    made = []
    for length in (1024, 2048):
        for leg in ("off", "on"):
            for turn in (1, 2, 3):
                cold = leg == "off" or turn == 1
                ttft = length / 1024 * (1.0 if cold else 0.125) * turn
                reused = 0 if cold else length - 100
                made.append(
                    record(
                        leg,
                        length,
                        turn,
                        ttft,
                        prompt_tokens=length + 200 * turn,
                        report=report(reused),
                        read_back=Transfers() if cold else read(20.0, reused),
                        hand_off=read(3.0, 100),
                    )
                )
    return made


def cell_of(records: list[Record], failed: int = 0) -> Cell:
    first = records[0]
    return Cell(first.leg, first.setting, first.repeat, len(records), failed, 1.0)
