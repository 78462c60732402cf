"""The connector's settings: `kv_connector_extra_config` of `--kv-transfer-config`, listed in docs/configuration.md."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from neuron_pd.core.decision import AUTO, DEFAULT_RECOMPUTE_THRESHOLD

THRESHOLD, CHOOSE = "kv_recompute_threshold", "neuron_pd_choose"
BUFFER_ENV = "NEURON_PD_BUFFER"
BACKENDS_ENV = "NEURON_PD_BACKENDS"
RETENTIONS = ("lease", "pin")
UNVERIFIED = ("refuse", "allow")


@dataclass(frozen=True, slots=True)
class Key:
    """A setting: its value where none is given, and what it means."""

    default: Any
    text: str


KEYS: Final = {
    "bidirectional_kv_xfer": Key(False, "KV also flows from decode to prefill; the same on both engines"),
    THRESHOLD: Key(
        DEFAULT_RECOMPUTE_THRESHOLD,
        f'tokens: fewer to fetch are computed. "{AUTO}": the way that is expected to be faster',
    ),
    "retention": Key(
        "lease", "`lease`: a finished turn pins nothing. `pin`: D keeps its blocks for `decoder_kv_blocks_ttl`"
    ),
    "read_lease_seconds": Key(30.0, "how long D holds blocks for one read"),
    "decoder_kv_blocks_ttl": Key(480.0, "pin: how long D holds a finished turn's blocks, in seconds"),
    "pin_budget": Key(0.5, "pin: the share of D's KV blocks that finished turns may hold"),
    "unverified": Key("refuse", "`allow`: read handles without a fingerprint, as plain upstream engines give them"),
    "ledger_bytes": Key(64 * 2**20, "bound on D's records of finished turns; about 40 bytes a block and 640 a record"),
    "kv_lease_duration": Key(30, "seconds for which P holds a prompt's blocks for D, prolonged while D waits for them"),
    "buffer": Key("auto", "where KV lives for NIXL: an adapter's name, or `staged`"),
    "backends": Key(None, "NIXL's backends, a list; the adapter's if not given"),
    "backend_parameters": Key(None, 'what each backend is created with: `{"UCX": {"num_threads": "4"}}`'),
    "staging_bytes": Key(4 * 2**30, "size of the host buffer of `staged`, on each worker"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person set; upstream's names and defaults where it has them.

    `threshold` in tokens (`kv_recompute_threshold`), used by `auto` too until it has measured enough. `pin_budget` is
    the share of D's KV blocks that retained turns may hold.
    """

    retention: str = KEYS["retention"].default
    read_lease_seconds: float = KEYS["read_lease_seconds"].default
    decoder_kv_blocks_ttl: float = KEYS["decoder_kv_blocks_ttl"].default
    pin_budget: float = KEYS["pin_budget"].default
    ledger_bytes: int = KEYS["ledger_bytes"].default
    threshold: int = KEYS[THRESHOLD].default
    auto: bool = False
    allow_unverified: bool = False

    @property
    def pins(self) -> bool:
        return self.retention == "pin"

    @classmethod
    def read(cls, extra: Callable[[str, Any], Any]) -> Self:
        """From `extra(name, default)`. ValueError, one line, names a value that cannot be and what it may be."""
        given = {name: extra(name, key.default) for name, key in KEYS.items()}
        auto = AUTO in (given[THRESHOLD], extra(CHOOSE, None))
        return cls(
            retention=_one_of("retention", given, RETENTIONS),
            read_lease_seconds=_number("read_lease_seconds", given, 0),
            decoder_kv_blocks_ttl=_number("decoder_kv_blocks_ttl", given, 0),
            pin_budget=_number("pin_budget", given, 0, 1),
            ledger_bytes=int(_number("ledger_bytes", given, 0)),
            threshold=DEFAULT_RECOMPUTE_THRESHOLD if auto else _threshold(given),
            auto=auto,
            allow_unverified=_one_of("unverified", given, UNVERIFIED) == "allow",
        )


def leave_upstream_a_number(extra: dict[str, Any]) -> None:
    """Move a threshold of "auto" out of the way of upstream's constructors, which read it as a number."""
    if extra.get(THRESHOLD) == AUTO:
        extra[THRESHOLD], extra[CHOOSE] = DEFAULT_RECOMPUTE_THRESHOLD, AUTO


def _threshold(given: dict[str, Any]) -> int:
    try:
        return int(_number(THRESHOLD, given, 0))
    except ValueError:
        raise ValueError(f'{THRESHOLD} is {given[THRESHOLD]!r}: give a number of tokens, or "{AUTO}"') from None


def _one_of(name: str, given: dict[str, Any], choices: tuple[str, ...]) -> str:
    if (value := given[name]) not in choices:
        raise ValueError(f"{name} is {value!r}: give {' or '.join(choices)}")
    return str(value)


def _number(name: str, given: dict[str, Any], low: float, high: float | None = None) -> float:
    value = given[name]
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not low <= number <= (float("inf") if high is None else high):
        limits = f"from {low} up" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} is {value!r}: give a number {limits}")
    return number
