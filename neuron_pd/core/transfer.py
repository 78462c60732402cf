"""`kv_transfer_params`, the object that routers and vLLM's NIXL connector pass along with a request.

Router to P, first turn           {"do_remote_decode": true, "do_remote_prefill": false}
Router to P, with D's lease       the same plus remote_block_ids, remote_engine_id, remote_request_id, remote_host,
                                  remote_port, remote_num_tokens ... (vLLM's names) and `FINGERPRINT`
P's answer, forwarded to D        {"do_remote_prefill": true, "do_remote_decode": false, remote_*: P's blocks}, `TURN`,
                                  and `BLOCK_SIZE`: P's, in tokens
Router to D                       P's answer without `TURN`, plus `HANDLE`: the name under which D records the turn

Field names and types are vLLM's (`vllm/distributed/kv_transfer/kv_connector/v1/nixl`, 0.29 to 0.32). Objects are passed
on as they came, with what neuron-pd adds under `neuron_pd_` names, so the fields of a newer vLLM survive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, Self, TypeGuard

from neuron_pd.core.fingerprint import Fingerprint
from neuron_pd.errors import TransferParamsError

HANDLE = "neuron_pd_handle"
FINGERPRINT = "neuron_pd_fingerprint"
TURN = "neuron_pd_turn"
BLOCK_SIZE = "neuron_pd_block_size"

Params = dict[str, Any]


def first_leg(lease: Mapping[str, Any] | None = None) -> Params:
    """What a router sends P: an ordinary prefill, or one that may start from D's `lease` (the acquire's answer)."""
    return {**(lease or {}), "do_remote_decode": True, "do_remote_prefill": False}


def second_leg(prefill_answer: Mapping[str, Any], handle: str | None) -> Params:
    """What a router sends D: P's answer, and the handle under which D records the finished turn."""
    params = dict(prefill_answer)
    params.pop(TURN, None)
    if handle is not None:
        params[HANDLE] = handle
    return params


@dataclass(slots=True)  # not frozen, which would make it four times as dear: the proxy reads one every turn
class TurnReport:
    """How P served its leg, in tokens. `path` is "read_back" or "recompute", `reason` says why it was not read back.

    `offered` tokens were in the lease, `verified` of them matched P's own prompt, `reused` were read from D; `local`
    came from P's own prefix cache. From being scheduled to its first token the leg took `took_ms`, of which `read_ms`
    for the read, and P had expected `expected_ms` (0: it had not seen enough yet to expect anything).
    """

    path: str
    reason: str
    prompt: int
    offered: int
    verified: int
    reused: int
    local: int
    took_ms: float = 0.0
    read_ms: float = 0.0
    expected_ms: float = 0.0

    def __str__(self) -> str:
        """As a log line has it: name=value, separated by blanks."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self | None:
        """None for anything that is not a report (an engine without neuron-pd sends none). Durations may be absent."""
        try:
            return cls(*_said(body), *[body.get(name, 0.0) for name in _DURATIONS])
        except (KeyError, TypeError):
            return None


_DURATIONS = ("took_ms", "read_ms", "expected_ms")
_said = itemgetter(*(name for name in TurnReport.__dataclass_fields__ if name not in _DURATIONS))


@dataclass(frozen=True, slots=True)
class RemoteBlocks:
    """The blocks of a lease as P sees them: per KV cache group, block ids that hold the first `num_tokens` tokens."""

    engine_id: str
    request_id: str
    block_ids: tuple[tuple[int, ...], ...]
    num_tokens: int
    fingerprint: Fingerprint | None

    @classmethod
    def parse(cls, params: Mapping[str, Any], num_groups: int) -> Self | None:
        """Read the lease out of what a router sent P; None where none was offered.

        Everything that vLLM's worker would only assert later is checked here, because there it ends the engine.
        Raises TransferParamsError (reason "malformed") for wrong types, a missing field, or counts that do not fit.
        """
        if not params.get("remote_block_ids"):
            return None
        engine_id, request_id, host, port = (
            params.get(f"remote_{name}") for name in ("engine_id", "request_id", "host", "port")
        )
        if not all(isinstance(text, str) and text for text in (engine_id, request_id, host)):
            raise TransferParamsError("malformed", "remote_engine_id, remote_request_id and remote_host must be text")
        if not _is_count(port) or port > 65535 or not _is_count(params.get("tp_size", 1)):
            raise TransferParamsError("malformed", "remote_port and tp_size must be whole numbers")
        expiry = params.get("remote_blocks_expiry_time")
        if expiry is not None and (isinstance(expiry, bool) or not isinstance(expiry, int | float)):
            raise TransferParamsError("malformed", "remote_blocks_expiry_time must be a number of seconds")
        num_tokens = params.get("remote_num_tokens")
        if not _is_count(num_tokens):
            raise TransferParamsError("malformed", "remote_num_tokens must be a whole number")
        encoded = params.get(FINGERPRINT)
        fingerprint = None if encoded is None else Fingerprint.from_json(encoded)
        return cls(
            engine_id=str(engine_id),
            request_id=str(request_id),
            block_ids=_block_ids(params["remote_block_ids"], num_groups),
            num_tokens=num_tokens,
            fingerprint=fingerprint,
        )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _block_ids(groups: Any, num_groups: int) -> tuple[tuple[int, ...], ...]:
    if not isinstance(groups, Sequence) or isinstance(groups, str) or len(groups) != num_groups:
        raise TransferParamsError("malformed", f"remote_block_ids must be {num_groups} lists, one a cache group")
    for group in groups:
        if not isinstance(group, Sequence) or isinstance(group, str):
            raise TransferParamsError("malformed", "remote_block_ids must be a list of lists")
        if not all(isinstance(block, int) and not isinstance(block, bool) and block >= 0 for block in group):
            raise TransferParamsError("malformed", "block ids must be whole numbers")
    return tuple(tuple(group) for group in groups)
