"""Read back, recompute or decode directly: how a turn comes by the KV of its prompt.

The threshold is upstream's `kv_recompute_threshold`: fewer tokens to fetch than that and computing them is taken to be
cheaper than fetching; as many or more are fetched. 0 fetches always. "auto" compares what the ways cost instead.
"""

from dataclasses import dataclass
from enum import StrEnum

from neuron_pd.core.cost import PrefillCost, TransferCost

DEFAULT_RECOMPUTE_THRESHOLD = 64
AUTO = "auto"


class Path(StrEnum):
    """How a turn came by the KV of a prompt that its engine did not already hold."""

    READ_BACK = "read_back"  # P fetched D's, and computed the rest
    RECOMPUTE = "recompute"  # P computed it
    DIRECT = "direct"  # D, which holds the history, computed the rest


class Reason(StrEnum):
    """Why a turn took its path. A metric label, and part of every `TurnReport`."""

    VERIFIED = "verified"  # read back: D's blocks hold this prompt's prefix
    NO_LEASE = "no_lease"  # nothing was offered: a first turn, or the router declined
    MISMATCH = "mismatch"  # offered, but not one whole block matches this prompt
    BELOW_THRESHOLD = "below_threshold"  # verified, but too few tokens to be worth a transfer
    COST = "cost"  # verified, but computing was expected to be faster than fetching
    LOCAL = "local"  # P's own prefix cache holds as much
    UNVERIFIED = "unverified"  # offered without a fingerprint
    MALFORMED = "malformed"  # offered, but the parameters do not hold together
    LEASE_TAKEN = "lease_taken"  # another request has claimed that lease
    LEASE_GONE = "lease_gone"  # D does not hold it any more: expired, given up, restarted; or D gave no answer
    SELF_READ = "self_read"  # the lease is this engine's own
    BIDIRECTIONAL_OFF = "bidirectional_off"  # this engine was started without bidirectional_kv_xfer
    UNSUPPORTED = "unsupported"  # a cache or a prompt that cannot be verified
    STAGING_FULL = "staging_full"  # verified, but the host buffer that it would arrive in has no room
    LOAD_FAILED = "load_failed"  # the read was queued and failed, or the request was preempted after it


def choose(verified: int, local: int, threshold: int) -> tuple[Path, Reason]:
    """The path for a prompt whose first `verified` tokens can be fetched and whose first `local` are already here."""
    to_fetch = verified - local
    if verified == 0:
        return Path.RECOMPUTE, Reason.MISMATCH
    if to_fetch <= 0:
        return Path.RECOMPUTE, Reason.LOCAL
    if to_fetch < threshold:
        return Path.RECOMPUTE, Reason.BELOW_THRESHOLD
    return Path.READ_BACK, Reason.VERIFIED


@dataclass(frozen=True, slots=True)
class Prompt:
    """A turn to serve, in tokens: `held` leading ones are at D, verified; `local` leading ones are at P."""

    tokens: int
    held: int
    local: int = 0


@dataclass(frozen=True, slots=True)
class Costs:
    """What serving costs between one P and one D. `direct` is None where D must not prefill.

    `others` is how many replies D is streaming: each waits while D prefills, and their waiting counts as cost.
    """

    bytes_per_token: float
    prefill: PrefillCost
    read_back: TransferCost
    hand_off: TransferCost
    direct: PrefillCost | None = None
    others: int = 0


def expected(prompt: Prompt, costs: Costs) -> dict[Path, float]:
    """Seconds to the first token by each way that is open, the hand-off of what D lacks included."""
    held, local = min(prompt.held, prompt.tokens), prompt.local
    lacking = prompt.tokens - held
    hand_off = costs.hand_off.seconds(lacking * costs.bytes_per_token)
    ways = {Path.RECOMPUTE: costs.prefill.seconds(prompt.tokens - local, local) + hand_off}
    if held > local:
        fetch = costs.read_back.seconds((held - local) * costs.bytes_per_token)
        ways[Path.READ_BACK] = fetch + costs.prefill.seconds(lacking, held) + hand_off
    if costs.direct is not None:
        ways[Path.DIRECT] = costs.direct.seconds(lacking, held) * (1 + costs.others)
    return ways


def cheapest(ways: dict[Path, float]) -> Path:
    """The way with the fewest seconds; of equals, the one that comes first."""
    return min(ways, key=lambda path: ways[path])
