"""The control path: what a router and an engine say to each other beside the OpenAI API.

    GET  /neuron_pd/v1/info      what the engine is                  -> EngineInfo as JSON
    POST /neuron_pd/v1/acquire   {"handle": H}                       -> 200 {"kv_transfer_params": {...}}
                                                                        404 {"reason": R} (an AcquireMiss value)
    POST /neuron_pd/v1/renew     {"lease": L} or {"handle": H}       -> 200 {"renewed": n leases, "ttl": seconds}
                                                                        404 {"reason": R}
    POST /neuron_pd/v1/release   {"lease": L} or {"handle": H}       -> 200 {"released": n leases}
    GET  /neuron_pd/v1/stats     counters and gauges                 -> 200 {name: number}

Every request carries the cluster's control token in `TOKEN_HEADER`. An engine without a token answers loopback only.
Each body is one JSON object of at most `MAX_BODY_BYTES`; unknown fields are ignored; what is not understood gets a 4xx
with {"error": ...}.
"""

import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from neuron_pd.errors import UsageError

PREFIX = "/neuron_pd/v1/"
INFO, ACQUIRE, RENEW, RELEASE, STATS = (PREFIX + verb for verb in ("info", "acquire", "renew", "release", "stats"))

TOKEN_HEADER = "x-neuron-pd-token"
TOKEN_ENV = "NEURON_PD_CONTROL_TOKEN"
TOKEN_FILE_ENV = "NEURON_PD_CONTROL_TOKEN_FILE"

MAX_BODY_BYTES = 16 * 1024
MAX_HANDLE_CHARS = 128


class AcquireMiss(StrEnum):
    """Why an engine has nothing to read, or to renew, for a handle."""

    UNKNOWN_HANDLE = "unknown_handle"  # never recorded here, dropped by the ledger's bound, or the engine restarted
    EVICTED = "evicted"  # recorded, but the first block has left the prefix cache
    STAGING_FULL = "staging_full"  # the host buffer between the device and NIXL has no room for a block
    DISABLED = "disabled"  # bidirectional_kv_xfer is off, or this engine keeps no prefix cache


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself. `block_size` in tokens, `kv_blocks` of that size in its pool.

    The side channel is where the other role asks for its memory: its first port, one for each data-parallel rank.
    """

    version: str
    vllm: str
    nixl: str
    torch: str
    model: str
    role: str
    engine_id: str
    accelerator: str
    block_size: int
    kv_blocks: int
    retention: str
    bidirectional: bool
    prefix_caching: bool
    kv_recompute_threshold: int | str
    read_lease_seconds: float
    decoder_kv_blocks_ttl: float = 480.0
    kv_layout: str = ""  # vLLM's name for it, where that is known
    side_channel_host: str = ""
    side_channel_port: int = 0

    @property
    def pins(self) -> bool:
        """Whether a finished turn's blocks are held (`Settings.pins`)."""
        return self.retention == "pin"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read what an engine sent; fields that a newer engine adds are ignored. KeyError when one is missing."""
        known = [field for field in fields(cls) if field.default is MISSING or field.name in body]
        return cls(**{field.name: body[field.name] for field in known})


def control_token(environ: Mapping[str, str] | None = None) -> str | None:
    """The cluster's control token: `NEURON_PD_CONTROL_TOKEN`, else the contents of `NEURON_PD_CONTROL_TOKEN_FILE`.

    None where neither is set. UsageError when the file cannot be read or is empty: a cluster that means to be guarded
    must not start unguarded.
    """
    environ = os.environ if environ is None else environ
    if token := environ.get(TOKEN_ENV, "").strip():
        return token
    if not (name := environ.get(TOKEN_FILE_ENV, "")):
        return None
    try:
        token = Path(name).read_text().strip()
    except OSError as error:
        raise UsageError(f"cannot read the control token from {name} ({TOKEN_FILE_ENV}): {error.strerror}") from error
    if not token:
        raise UsageError(f"{name} ({TOKEN_FILE_ENV}) is empty: write the cluster's control token into it")
    return token
