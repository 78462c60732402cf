"""Whether engines can do what they are for: what each says of itself, and what P and D say beside each other."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from neuron_pd.core.control import TOKEN_FILE_ENV, EngineInfo
from neuron_pd.core.versions import MINIMUM_NIXL, is_old_nixl

PREFILL, DECODE = "prefill", "decode"
OTHER_ROLE: Final[Mapping[str, tuple[str, str]]] = {
    PREFILL: (DECODE, "kv_consumer"),
    DECODE: (PREFILL, "kv_producer"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with an engine: what, and the setting to change. A `fatal` one keeps it from being used.

    `about` names the setting or the version in a word or two.
    """

    what: str
    change: str
    fatal: bool = False
    about: str = ""


def alone(info: EngineInfo, role: str) -> Iterator[Problem]:
    """What is wrong with an engine that is to serve `role`, whatever the others are."""
    if info.role in OTHER_ROLE[role]:
        yield Problem(
            f"it says its role is {info.role}",
            f"swap --prefill and --decode, or launch it with --role {role}",
            about="role",
        )
    if not info.bidirectional:
        change = "set bidirectional_kv_xfer to true (BIDIR=true) on prefill and decode"
        yield Problem("bidirectional_kv_xfer is off: no reuse", change, about="bidirectional")
    if role == DECODE and not info.prefix_caching:
        what = "prefix caching is off: nothing to read back"
        yield Problem(what, "start it without --no-enable-prefix-caching", about="prefix caching")
    if is_old_nixl(info.nixl):
        what = f"NIXL {info.nixl} is older than {MINIMUM_NIXL}, the first that our connector was run with"
        yield Problem(what, f"pip install 'nixl>={MINIMUM_NIXL}' on it", about="NIXL")


def together(mine: EngineInfo, other: EngineInfo, url: str) -> Iterator[Problem]:
    """What does not fit between an engine and the `other` one, which is at `url`."""
    if mine.vllm != other.vllm:
        what = f"vLLM {mine.vllm} here, {other.vllm} at {url}: their KV layouts cannot be exchanged"
        yield Problem(what, "run the same vLLM version on both", fatal=True, about="vLLM")
    if mine.block_size != other.block_size:
        what = f"blocks of {mine.block_size} tokens here, {other.block_size} at {url}"
        yield Problem(what, "set the same --block-size on both", fatal=True, about="block size")
    if mine.kv_layout and other.kv_layout and mine.kv_layout != other.kv_layout:
        what = f"KV layout {mine.kv_layout} here, {other.kv_layout} at {url}"
        change = "set the same VLLM_KV_CACHE_LAYOUT on both, or enable_permute_local_kv where it serves"
        yield Problem(what, change, about="KV layout")
    if mine.retention != other.retention:
        what = f"retention {mine.retention} here, {other.retention} at {url}"
        yield Problem(what, "set the same retention in kv_connector_extra_config on both", about="retention")
    if _last(mine.model) != _last(other.model):
        what = f"model {_last(mine.model)} here, {_last(other.model)} at {url}"
        yield Problem(what, "serve the same model on both", about="model")
    if mine.version != other.version:
        what = f"neuron-pd {mine.version} here, {other.version} at {url}"
        yield Problem(what, "install the same neuron-pd version on both", about="neuron-pd")


def outlived(decode: EngineInfo, conversation_ttl: float) -> Iterator[Problem]:
    """In pin mode, a D that lets go of blocks before the router forgets the conversation, in seconds."""
    ttl = decode.decoder_kv_blocks_ttl
    if decode.pins and ttl < conversation_ttl:
        what = f"it keeps blocks for {ttl:g} s, and conversations are remembered for {conversation_ttl:g} s"
        change = f"set --conversation-ttl to less than {ttl:g}, or raise decoder_kv_blocks_ttl"
        yield Problem(what, change, about="decoder_kv_blocks_ttl")


def refused(token: str | None, who: str = "the proxy") -> Problem:
    """An engine that answers 401 to `who`, who has this control token."""
    if token:
        change = f"give {who} and the engines the same {TOKEN_FILE_ENV}"
        return Problem("it refuses the control token: no reuse", change, about="control token")
    what = f"it wants a control token and {who} has none: no reuse"
    return Problem(what, f"set {TOKEN_FILE_ENV} for {who}, as on the engine", about="control token")


def no_connector(status: int) -> Problem:
    """An engine whose control path answers `status`."""
    what = f"no neuron-pd connector (its control path answers {status}): ordinary P/D, and reuse only as vLLM's own"
    change = "start it with `neuron-pd launch`, or add --middleware neuron_pd.connector.control.ControlPath"
    return Problem(what, change, about="connector")


def other_protocol(missing: object) -> Problem:
    """An engine whose `info` lacks something that we need."""
    what = f"its control path speaks another version ({missing} is missing): no reuse"
    return Problem(what, "run the same neuron-pd version on engines and proxy", about="control path")


def _last(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2]
