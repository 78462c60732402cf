"""What a model's directory says of its size: the length limit, bytes of weights, bytes of KV a token."""

import json
from pathlib import Path
from typing import Any, Final

BYTES: Final = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "auto": 2}


def model_config(model: str) -> dict[str, Any]:
    """The directory's config.json; empty for a model that is not a directory or cannot be read."""
    try:
        body = json.loads((Path(model) / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def length_limit(model: str) -> int | None:
    """The longest sequence that the model was made for, in tokens; None where its configuration does not say."""
    limit = model_config(model).get("max_position_embeddings")
    return limit if isinstance(limit, int) else None


def weight_bytes(model: str, dtype: str) -> int:
    """Bytes of the weights once loaded in `dtype`; 0 where the directory holds no safetensors."""
    stored = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))
    config = model_config(model)
    stored_in = BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 2)
    return stored * BYTES.get(dtype, stored_in) // stored_in


def kv_bytes_per_token(model: str, dtype: str) -> int | None:
    """Bytes of KV a token for grouped-query attention (layers x KV heads x head size x K and V); None where unknown."""
    config = model_config(model)
    try:
        heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        size = config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * head_dim * 2
        return int(size * BYTES.get(dtype, 2))
    except (KeyError, TypeError, ZeroDivisionError):
        return None
