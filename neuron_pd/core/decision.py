"""Read back or recompute: what P does with a verified prefix.

The threshold is upstream's `kv_recompute_threshold`: fewer tokens to fetch than that and computing them is taken to be
cheaper than fetching; as many or more are fetched. 0 fetches always.
"""

from enum import StrEnum

DEFAULT_RECOMPUTE_THRESHOLD = 64


class Path(StrEnum):
    """How P came by the KV of a prompt that it did not already hold."""

    READ_BACK = "read_back"
    RECOMPUTE = "recompute"


class Reason(StrEnum):
    """Why a turn took its path. A metric label, and part of every `TurnReport`."""

    VERIFIED = "verified"  # read back: D's blocks hold this prompt's prefix
    NO_LEASE = "no_lease"  # nothing was offered: a first turn, or the router declined
    MISMATCH = "mismatch"  # offered, but not one whole block matches this prompt
    BELOW_THRESHOLD = "below_threshold"  # verified, but too few tokens to be worth a transfer
    LOCAL = "local"  # P's own prefix cache holds as much
    UNVERIFIED = "unverified"  # offered without a fingerprint
    MALFORMED = "malformed"  # offered, but the parameters do not hold together
    LEASE_USED = "lease_used"  # this engine has read that lease before: its blocks are no longer held
    SELF_READ = "self_read"  # the lease is this engine's own
    BIDIRECTIONAL_OFF = "bidirectional_off"  # this engine was started without bidirectional_kv_xfer
    UNSUPPORTED = "unsupported"  # not one full-attention cache group, or a prompt that is not only tokens
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
