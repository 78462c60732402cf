"""Model profiles: what a model weighs, what a token of its KV takes, and how it is started on each accelerator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_pd.errors import UsageError
from neuron_pd.profiles.instance import Instance
from neuron_pd.profiles.schema import build, count, key, mapping_of, nested, text, texts, whole
from neuron_pd.profiles.settings import ByRole, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes once loaded."""

    bytes: int = key(whole, "all weights, bytes")
    expert_bytes: int = key(count, "of them in routed experts, which expert parallelism spreads over all ranks", 0)

    def per_rank(self, tensor_parallel: int, ranks: int, spread_experts: bool) -> float:
        """Bytes on one of `ranks` cores."""
        experts = self.expert_bytes / (ranks if spread_experts else tensor_parallel)
        return (self.bytes - self.expert_bytes) / tensor_parallel + experts


@dataclass(frozen=True, slots=True, kw_only=True)
class KV:
    """What the KV cache takes, over all layers."""

    bytes_per_token: Mapping[str, int] = key(mapping_of(whole), "by KV precision (bfloat16, fp8 …): bytes a token")
    heads: int = key(count, "KV heads, which tensor parallelism divides; 0: a latent that every rank holds whole")

    def per_rank(self, dtype: str, tensor_parallel: int) -> float | None:
        """Bytes a token on one core; None for a precision that is not known. TP above the heads replicates them."""
        stored = self.bytes_per_token.get(dtype)
        if stored is None or not self.heads:
            return stored
        return stored * -(-self.heads // tensor_parallel) / self.heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(ByRole):
    """How a model is started on one accelerator or instance type."""

    weights: Weights | None = key(nested(Weights), "the weights as they are loaded there, where that differs", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model."""

    name: str = key(text, "the model, as a person says it")
    description: str = key(text, "one line")
    hub: tuple[str, ...] = key(texts, "the names that `--model` knows it by; a directory of that name is it too", ())
    weights: Weights = key(nested(Weights), "see below")
    kv: KV = key(nested(KV), "see below")
    max_model_len: int = key(whole, "the longest sequence the model was made for, tokens")
    defaults: Settings = key(nested(Settings), "settings on every accelerator", Settings())
    targets: Mapping[str, Target] = key(
        mapping_of(nested(Target)), "by accelerator or instance type: settings, roles, weights"
    )
    notes: tuple[str, ...] = key(texts, "lines that `launch` prints beside the command", ())
    sources: Mapping[str, str] = key(mapping_of(text), "dotted key to where its value comes from", {})

    def settings(self, instance: Instance, role: str) -> Settings:
        """What this model needs there; an instance's entry wins over its accelerator's. UsageError where it has none.

        On CPU any model may be tried: one that has no entry is served with the instance's own settings.
        """
        names = self._entries(instance)
        if not names and instance.accelerator != "cpu":
            raise UsageError(
                f"{self.name} has no settings for {instance.name} ({instance.accelerator}), only for "
                f"{', '.join(self.targets)}: choose another --instance, or give a model profile of your own (--profile)"
            )
        chosen = self.defaults
        for name in names:
            chosen = self.targets[name].of(role).over(chosen)
        return chosen

    def weights_on(self, instance: Instance) -> Weights:
        for name in reversed(self._entries(instance)):
            if (loaded := self.targets[name].weights) is not None:
                return loaded
        return self.weights

    def _entries(self, instance: Instance) -> list[str]:
        return [name for name in (instance.accelerator, instance.name) if name in self.targets]


def parse_model(body: Any, where: str) -> Model:
    """Check and read a profile. UsageError naming the file, the key and what is wrong with it."""
    return build(Model, body, where)
