"""The connector's settings: `kv_connector_extra_config` of `--kv-transfer-config`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from neuron_pd.core.decision import AUTO, DEFAULT_RECOMPUTE_THRESHOLD

LEDGER_BYTES = 64 * 1024 * 1024
THRESHOLD, CHOOSE = "kv_recompute_threshold", "neuron_pd_choose"
RETENTIONS = ("lease", "pin")
UNVERIFIED = ("refuse", "allow")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person set; upstream's names and defaults where it has them.

    `threshold` in tokens (`kv_recompute_threshold`), used by `auto` too until it has measured enough. `pin_budget` is
    the share of D's KV blocks that retained turns may hold.
    """

    retention: str = "lease"
    read_lease_seconds: float = 30.0
    decoder_kv_blocks_ttl: float = 480.0
    pin_budget: float = 0.5
    ledger_bytes: int = LEDGER_BYTES
    threshold: int = DEFAULT_RECOMPUTE_THRESHOLD
    auto: bool = False
    allow_unverified: bool = False

    @property
    def pins(self) -> bool:
        return self.retention == "pin"

    @classmethod
    def read(cls, extra: Callable[[str, Any], Any]) -> Self:
        """From `extra(name, default)`. ValueError, one line, names a value that cannot be and what it may be."""
        threshold = extra(THRESHOLD, DEFAULT_RECOMPUTE_THRESHOLD)
        auto = AUTO in (threshold, extra(CHOOSE, None))
        return cls(
            retention=_one_of("retention", extra("retention", "lease"), RETENTIONS),
            read_lease_seconds=_number("read_lease_seconds", extra("read_lease_seconds", 30.0), 0),
            decoder_kv_blocks_ttl=_number("decoder_kv_blocks_ttl", extra("decoder_kv_blocks_ttl", 480), 0),
            pin_budget=_number("pin_budget", extra("pin_budget", 0.5), 0, 1),
            ledger_bytes=int(_number("ledger_bytes", extra("ledger_bytes", LEDGER_BYTES), 0)),
            threshold=DEFAULT_RECOMPUTE_THRESHOLD if auto else int(_threshold(threshold)),
            auto=auto,
            allow_unverified=_one_of("unverified", extra("unverified", "refuse"), UNVERIFIED) == "allow",
        )


def leave_upstream_a_number(extra: dict[str, Any]) -> None:
    """Move a threshold of "auto" out of the way of upstream's constructors, which read it as a number."""
    if extra.get(THRESHOLD) == AUTO:
        extra[THRESHOLD], extra[CHOOSE] = DEFAULT_RECOMPUTE_THRESHOLD, AUTO


def _threshold(value: Any) -> float:
    try:
        return _number(THRESHOLD, value, 0)
    except ValueError:
        raise ValueError(f'{THRESHOLD} is {value!r}: give a number of tokens, or "{AUTO}"') from None


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: give {' or '.join(choices)}")
    return str(value)


def _number(name: str, value: Any, low: float, high: float | None = None) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not low <= number <= (float("inf") if high is None else high):
        limits = f"from {low} up" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} is {value!r}: give a number {limits}")
    return number
