"""Profiles as a person writes them."""

from pathlib import Path
from typing import Any

import yaml

INSTANCE: dict[str, Any] = {
    "name": "box",
    "description": "a box",
    "accelerator": "cpu",
    "command": ["serve", "{model}"],
    "kv_transfer": {"buffer_device": "cpu", "backends": ["UCX"]},
    "defaults": {
        "dtype": "float32",
        "max_model_len": 1024,
        "kv_cache_gib": 1,
        "environment": {"CORES": "{cores}"},
        "flags": {"max-num-seqs": 8, "enforce-eager": True},
    },
    "roles": {
        "prefill": {"port": 1, "side_channel_port": 2, "flags": {"max-num-seqs": 1}},
        "decode": {"port": 3, "side_channel_port": 4, "environment": {"ONLY": "decode"}},
    },
}
MODEL: dict[str, Any] = {
    "name": "Small-1B",
    "description": "a model",
    "hub": ["owner/Small-1B-Instruct"],
    "weights": {"bytes": 2_000_000_000},
    "kv": {"bytes_per_token": {"bfloat16": 4096}, "heads": 4},
    "max_model_len": 4096,
    "defaults": {"recompute_threshold": 128, "flags": {"seed": 1}},
    "targets": {
        "cuda": {"tensor_parallel_size": 2, "flags": {"enforce-eager": True}},
        "box-of-gpus": {"tensor_parallel_size": 4, "roles": {"decode": {"max_num_seqs": 3}}},
    },
}


def write(directory: Path, name: str, kind: str, body: dict[str, Any]) -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"kind": kind, **body}))
    return path
