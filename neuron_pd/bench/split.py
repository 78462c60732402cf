"""Where the time to the first token goes: transfer, compute, and everything else, each measured by who spends it.

| part | measured by |
|---|---|
| transfer | NIXL on P: the D→P read (`vllm:nixl_xfer_time_seconds`) |
| compute | P's engine: from the first scheduling to the first token (`vllm:request_prefill_time_seconds`) |
| acquire | the proxy: the question to D (`Server-Timing`) |
| prefill_wait | P's engine: its queue (`vllm:request_queue_time_seconds`) less the transfer: around the read |
| prefill_api | the proxy's whole prefill leg less P's queue and compute: HTTP, template, tokenizer |
| decode_api | the client: until the headers, less acquire and prefill leg: the proxy, D's HTTP and tokenizer |
| hand_off | NIXL on D: the P→D read |
| decode_wait | D's engine: its queue less the hand-off |
| first_step | D's engine: its first step |
| delivery | D's API: its time to first token (`vllm:time_to_first_token_seconds`) less its engine's two |

The parts are of different clocks and processes, and nothing makes them add up to the client's TTFT but that they cover
it: `error` says how well they do.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from neuron_pd.bench.records import Record

LABELS: Final = {
    "transfer": "KV transfer D→P",
    "compute": "compute on P",
    "acquire": "acquire",
    "prefill_wait": "waiting on P",
    "prefill_api": "P's API",
    "decode_api": "proxy and D's API",
    "hand_off": "hand-off P→D",
    "decode_wait": "waiting on D",
    "first_step": "D's first step",
    "delivery": "D's delivery",
}
MAIN: Final = ("transfer", "compute")


@dataclass(frozen=True, slots=True)
class Split:
    """Means over `turns` turns, in milliseconds: means, unlike medians, can be added."""

    turns: int
    ttft: float
    parts: dict[str, float]

    @property
    def transfer(self) -> float:
        return self.parts["transfer"]

    @property
    def compute(self) -> float:
        return self.parts["compute"]

    @property
    def rest(self) -> float:
        return sum(value for name, value in self.parts.items() if name not in MAIN)

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def error(self) -> float:
        """How far the parts' sum is from the TTFT, as a share of it."""
        return self.total / self.ttft - 1

    def as_json(self) -> dict[str, Any]:
        shares = {"transfer": self.transfer, "compute": self.compute, "rest": self.rest}
        return {
            "turns": self.turns,
            "ttft_ms": self.ttft,
            "shares": {name: value / self.total for name, value in shares.items()},
            "parts_ms": self.parts,
            "sum_ms": self.total,
            "sum_over_ttft": 1 + self.error,
        }


def split(records: Iterable[Record]) -> Split | None:
    """The mean split of those turns of which every part was measured; None where there is none."""
    found = [(parts, record.ttft_ms) for record in records if (parts := parts_of(record)) and record.ttft_ms]
    if not found:
        return None
    means = {name: fmean([parts[name] for parts, _ in found]) for name in LABELS}
    return Split(len(found), fmean(ttft for _, ttft in found), means)


def parts_of(record: Record) -> dict[str, float] | None:
    """One turn's parts in milliseconds; None where one of them is not known."""
    prefill, decode, head, leg = record.prefill_phases, record.decode_phases, record.head_ms, record.prefill_ms
    if prefill is None or decode is None or record.read_back is None or record.hand_off is None:
        return None
    if head is None or leg is None or prefill.count != 1 or decode.count != 1:
        return None
    acquire = record.server_timing.get("acquire", 0.0)
    queued, compute = 1000 * prefill.queued, 1000 * prefill.prefill
    transfer, hand_off = record.read_back.mean_ms, record.hand_off.mean_ms
    return {
        "transfer": transfer,
        "compute": compute,
        "acquire": acquire,
        "prefill_wait": queued - transfer,
        "prefill_api": leg - queued - compute,
        "decode_api": head - acquire - leg,
        "hand_off": hand_off,
        "decode_wait": 1000 * decode.queued - hand_off,
        "first_step": 1000 * decode.prefill,
        "delivery": 1000 * (decode.first_token - decode.queued - decode.prefill),
    }
