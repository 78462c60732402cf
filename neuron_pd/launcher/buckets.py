"""`neuron_config`: the shapes that the vLLM Neuron plugin compiles for, and the rules that they must keep.

The rules are those of the plugin's configuration reference: the largest bucket of tokens is --max-num-batched-tokens,
the largest of sequences is --max-num-seqs, KV segments are the token buckets, each 512 to 8192 and whole blocks.
"""

from collections.abc import Mapping
from typing import Any, Final

from neuron_pd.errors import UsageError
from neuron_pd.launcher.flags import ADDITIONAL, Value, number

SEGMENTS: Final = (512, 1024, 2048, 4096, 8192)
CONTEXT_STEP: Final = 128
NAME: Final = "neuron_config"
TOKENS, SEQUENCES, KV_SEGMENTS, CONTEXTS = (
    "num_batched_tokens_buckets", "num_seqs_buckets", "kv_segment_size_buckets", "decode_context_length_buckets",
)  # fmt: skip


def with_buckets(flags: Mapping[str, Value]) -> dict[str, Value]:
    """The flags with the buckets that nobody gave; UsageError for buckets that cannot work."""
    additional = flags.get(ADDITIONAL)
    body: Mapping[str, Any] = additional if isinstance(additional, Mapping) else {}
    config = dict(body.get(NAME) or {})
    tokens, sequences = number(flags, "max-num-batched-tokens"), number(flags, "max-num-seqs")
    if tokens is not None:
        config.setdefault(TOKENS, [tokens])
        config.setdefault(KV_SEGMENTS, config[TOKENS])
    if sequences is not None:
        config.setdefault(SEQUENCES, [sequences])
    check_buckets(config, flags)
    return {**flags, ADDITIONAL: {**body, NAME: config}}


def check_buckets(config: Mapping[str, Any], flags: Mapping[str, Value]) -> None:
    """UsageError, with both numbers, for the first rule that is broken."""
    for name in (TOKENS, SEQUENCES, KV_SEGMENTS, CONTEXTS):
        _check_list(name, config.get(name))
    _check_largest(TOKENS, config, "max-num-batched-tokens", flags)
    _check_largest(SEQUENCES, config, "max-num-seqs", flags)
    segments, tokens = config.get(KV_SEGMENTS), config.get(TOKENS)
    if segments is None:
        return
    if segments != tokens:
        raise UsageError(f"{KV_SEGMENTS} is {segments} and {TOKENS} is {tokens}: they must be equal")
    block = number(flags, "block-size") or 1
    for segment in segments:
        if segment not in SEGMENTS:
            raise UsageError(f"{KV_SEGMENTS} has {segment}: each must be one of {', '.join(map(str, SEGMENTS))}")
        if segment % block:
            raise UsageError(f"{KV_SEGMENTS} has {segment}, which is not whole blocks of --block-size {block}")
    longest = number(flags, "max-model-len")
    for context in config.get(CONTEXTS) or ():
        if context % CONTEXT_STEP or (longest is not None and context >= longest):
            raise UsageError(f"{CONTEXTS} has {context}: each must be a multiple of {CONTEXT_STEP} below {longest}")


def _check_list(name: str, buckets: Any) -> None:
    if buckets is None:
        return
    whole = isinstance(buckets, list) and buckets and all(type(item) is int and item > 0 for item in buckets)
    if not whole or sorted(set(buckets)) != buckets:
        raise UsageError(f"{name} is {buckets!r}: it must be a list of whole numbers that rise")


def _check_largest(name: str, config: Mapping[str, Any], flag: str, flags: Mapping[str, Value]) -> None:
    limit, buckets = number(flags, flag), config.get(name)
    if limit is not None and buckets and buckets[-1] != limit:
        raise UsageError(f"the largest of {name} is {buckets[-1]} and --{flag} is {limit}: they must be equal")
