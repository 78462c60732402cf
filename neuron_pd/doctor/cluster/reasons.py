"""What a turn's reason means for an operator, and what to do: P's, D's answers to an acquire, and the proxy's own."""

from typing import Final

from neuron_pd.core.control import AcquireMiss
from neuron_pd.core.decision import Reason

BIDIR: Final = "set bidirectional_kv_xfer to true (BIDIR=true) on prefill and decode"
LAUNCHED: Final = "start both engines with `neuron-pd launch`"
D_LOG: Final = "look at `neuron-pd logs` of decode"

# The reason: what it means, and what to do.
REASONS: Final[dict[str, tuple[str, str]]] = {
    Reason.NO_LEASE: ("nothing was offered to P", "see the proxy's log: `neuron-pd logs --declines`"),
    Reason.MISMATCH: (
        "D's blocks are not this prompt's: model, adapter or control token differ between the engines",
        "give both engines the same model, revision and control token",
    ),
    Reason.BELOW_THRESHOLD: ("too few tokens to be worth a transfer", "lower kv_recompute_threshold"),
    Reason.COST: (
        "P expected computing to be faster",
        "nothing, where the link is slow; else set a number as threshold",
    ),
    Reason.LOCAL: ("P's own prefix cache held as much", "nothing: nothing had to be read"),
    Reason.UNVERIFIED: ("D's offer has no fingerprint: it is upstream's connector", LAUNCHED),
    Reason.MALFORMED: ("D's parameters do not hold together", "run the same neuron-pd and vLLM version on both"),
    Reason.LEASE_TAKEN: ("another request has claimed the lease", "try again; see `neuron-pd logs` of the proxy"),
    Reason.LEASE_GONE: (
        "P got no claim on D's lease: it expired, D restarted, or D's side channel cannot be reached from P",
        "see side channels; raise read_lease_seconds where P is busy",
    ),
    Reason.SELF_READ: ("P was given its own lease", "swap --prefill and --decode: one engine is in both pools"),
    Reason.BIDIRECTIONAL_OFF: ("P runs without bidirectional_kv_xfer", BIDIR),
    Reason.UNSUPPORTED: (
        "its cache cannot be verified, or P's blocks are not made of whole ones of D",
        "see docs/operations.md",
    ),
    Reason.STAGING_FULL: ("the host buffer has no room", "raise staging_bytes"),
    Reason.LOAD_FAILED: (
        "the read failed, or came too late",
        "see NIXL backend and side channels; and P's log",
    ),
    AcquireMiss.UNKNOWN_HANDLE: ("D has no record of the turn: it restarted, or never got the handle", D_LOG),
    AcquireMiss.EVICTED: ("D's prefix cache has let go of it", "give D more KV cache, or fewer conversations"),
    AcquireMiss.DISABLED: ("D runs without bidirectional_kv_xfer, or without a prefix cache", BIDIR),
    "none": ("the proxy does not know the conversation: the first turn was not recorded", "see the proxy's log"),
    "off": ("reuse was declined", "leave X-Neuron-PD-Reuse out"),
    "decode_gone": ("the D that holds the conversation has left its pool", "start it again"),
    "decode_without_reuse": ("D lacks our connector, refuses the proxy's token, or is not bidirectional", BIDIR),
    "prefill_without_reuse": (
        "P lacks our connector, refuses the proxy's token, or is not bidirectional",
        BIDIR,
    ),
    "acquire_failed": ("D gave the proxy no answer in time", "raise --acquire-timeout, or look at D's load and log"),
    "renew_failed": ("D gave the proxy no answer about its lease", "look at D's load and log"),
    "offer_gone": ("D's offer expired before the turn came", "raise decoder_kv_blocks_ttl, or use retention lease"),
    "unverifiable": ("the offer of upstream's connector could not be verified", LAUNCHED),
}


def explain(reason: str) -> tuple[str, str]:
    """What it means, and what to do."""
    return REASONS.get(str(reason), ("which this version does not know", "look it up in docs/operations.md"))
