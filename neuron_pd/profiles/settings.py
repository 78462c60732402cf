"""What an engine is started with: the vocabulary that instance and model profiles share."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from neuron_pd.profiles.schema import json_object, key, mapping_of, nested, text, variables, vllm_flags, whole

Flag = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Lengths in tokens, memory in GiB. None is "not said here"."""

    dtype: str | None = key(text, "precision of the activations, and of weights that the checkpoint does not fix", None)
    tensor_parallel_size: int | None = key(whole, "cores or GPUs that share a layer", None)
    data_parallel_size: int | None = key(whole, "copies of the attention; one side-channel port for each", None)
    max_model_len: int | None = key(whole, "longest sequence, tokens; less where the model's own limit is less", None)
    max_num_seqs: int | None = key(whole, "sequences that run at once", None)
    max_num_batched_tokens: int | None = key(whole, "tokens of one step", None)
    block_size: int | None = key(whole, "tokens in a KV block; the same on both roles", None)
    kv_cache_gib: int | None = key(whole, "memory for KV on CPU, GiB", None)
    recompute_threshold: int | None = key(whole, "kv_recompute_threshold: fewer tokens than this are computed", None)
    connector: str | None = key(text, "upstream's connector class, where it is not NixlConnector", None)
    environment: Mapping[str, str] = key(variables, "variables: a mapping of names to texts", {})
    flags: Mapping[str, Flag] = key(vllm_flags, "vLLM flags without dashes; true is --flag, false is --no-flag", {})
    neuron_config: Mapping[str, Any] = key(json_object, "the plugin's neuron_config; missing buckets are filled in", {})

    def over(self, below: "Settings") -> "Settings":
        """These, and what they do not say from `below`. Mappings are merged key by key."""
        values: dict[str, Any] = {}
        for item in fields(Settings):
            mine, theirs = getattr(self, item.name), getattr(below, item.name)
            values[item.name] = {**theirs, **mine} if isinstance(mine, Mapping) else theirs if mine is None else mine
        return Settings(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByRole(Settings):
    """Settings, and what a role has in place of them."""

    roles: Mapping[str, Settings] = key(mapping_of(nested(Settings)), "prefill, decode: settings that win there", {})

    def of(self, role: str) -> Settings:
        return self.roles[role].over(self) if role in self.roles else self.over(Settings())
