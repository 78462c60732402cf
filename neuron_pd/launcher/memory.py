"""Does an engine fit into its accelerators' memory: the arithmetic, one core at a time.

A core holds its share of the weights and, of every token, the KV of its share of the heads. vLLM starts when one
sequence of the greatest length fits beside the weights into the part of the memory that it may use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuron_pd.errors import UsageError
from neuron_pd.launcher.flags import Value, number
from neuron_pd.launcher.layout import Layout
from neuron_pd.launcher.weights import kv_bytes_per_token, model_config, weight_bytes
from neuron_pd.profiles import Instance, Model
from neuron_pd.profiles.model import KV, Weights

GIB: Final = 2**30
USED: Final = 0.9  # of the memory, by vLLM's default (0.90 to 0.92 from release to release)


@dataclass(frozen=True, slots=True)
class Fit:
    """One core's memory, bytes. `kv_per_token` is this core's part; `unit` is what a core is called."""

    weights: float
    kv_per_token: float
    usable: float
    core: float
    length: int
    unit: str = "core"

    @property
    def tokens(self) -> int:
        """How many tokens' KV fit beside the weights."""
        return max(0, int((self.usable - self.weights) / self.kv_per_token))

    @property
    def fits(self) -> bool:
        return self.tokens >= self.length

    @property
    def arithmetic(self) -> str:
        return (
            f"{self.weights / GIB:.1f} GiB of weights + {self.length:,} tokens x {self.kv_per_token:,.0f} bytes = "
            f"{self.length * self.kv_per_token / GIB:.1f} GiB of KV, of {self.usable / GIB:.1f} GiB that vLLM may use "
            f"of {self.core / GIB:.0f} GiB a {self.unit}"
        )


def fit(model: str, card: Model | None, instance: Instance, layout: Layout, flags: Mapping[str, Value]) -> Fit | None:
    """The arithmetic; None where the machine's or the model's size is not known."""
    hardware, length = instance.hardware, number(flags, "max-model-len")
    sizes = (card.weights_on(instance), card.kv) if card else _directory_sizes(model, str(flags.get("dtype")))
    if hardware is None or sizes is None or length is None:
        return None
    weights, kv = sizes
    per_token = kv.per_rank(_kv_precision(flags), layout.tensor_parallel)
    if per_token is None:
        return None
    spread = flags.get("enable-expert-parallel") is True
    core = hardware.core_hbm * GIB
    return Fit(
        weights=weights.per_rank(layout.tensor_parallel, layout.ranks, spread),
        kv_per_token=per_token,
        usable=core * _used(flags),
        core=core,
        length=length,
        unit="core" if instance.is_neuron else "GPU",
    )


def check_fits(found: Fit, name: str, layout: Layout) -> None:
    """UsageError with the arithmetic when one sequence of the greatest length does not fit."""
    if found.fits:
        return
    at = f"{name} at tensor parallel {layout.tensor_parallel} does not fit: {found.arithmetic}"
    remedy = (
        f"lower --max-model-len to {found.tokens}"
        if found.tokens
        else "raise --tensor-parallel-size (behind --) or choose a larger --instance"
    )
    raise UsageError(f"{at}; {remedy}")


def _directory_sizes(model: str, dtype: str) -> tuple[Weights, KV] | None:
    """From a directory's own files."""
    stored, per_token = weight_bytes(model, dtype), kv_bytes_per_token(model, dtype)
    if not Path(model).is_dir() or not stored or not per_token:
        return None
    config: dict[str, Any] = model_config(model)
    heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
    return Weights(bytes=stored), KV(bytes_per_token={dtype: per_token}, heads=heads)


def _kv_precision(flags: Mapping[str, Value]) -> str:
    named = str(flags.get("kv-cache-dtype", "auto"))
    return str(flags.get("dtype")) if named == "auto" else named.split("_")[0]


def _used(flags: Mapping[str, Value]) -> float:
    try:
        return float(str(flags.get("gpu-memory-utilization", USED)))
    except ValueError:
        return USED
