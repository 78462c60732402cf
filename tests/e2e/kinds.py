"""Tiny random-weight models of the kinds of KV cache that vLLM knows, with `tiny`'s tokeniser."""

import shutil
from pathlib import Path
from typing import Any

from neuron_pd.models import model_dir

SIZE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
    "tie_word_embeddings": True,
}
WINDOW = 128  # tokens


def _config(kind: str, vocab_size: int) -> Any:
    import transformers as t

    if kind == "sliding":  # every layer sees a window only
        return t.MistralConfig(**SIZE, vocab_size=vocab_size, num_key_value_heads=2, sliding_window=WINDOW)
    if kind == "hybrid":  # some layers see a window, some all
        layers = ["sliding_attention", "full_attention"] * 2
        return t.Gemma2Config(
            **SIZE, vocab_size=vocab_size, num_key_value_heads=2, head_dim=32, sliding_window=WINDOW, layer_types=layers
        )
    assert kind == "mla"  # one latent for all heads
    return t.DeepseekV2Config(
        **SIZE,
        vocab_size=vocab_size,
        num_key_value_heads=4,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        first_k_dense_replace=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
    )


def make(kind: str, path: Path) -> Path:
    """A model directory at `path`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny = model_dir("tiny")
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(_config(kind, len(tokenizer)), dtype=torch.float32)
    model.save_pretrained(path)
    for file in tiny.glob("*token*"):
        shutil.copy(file, path)
    for file in tiny.glob("chat_template*"):
        shutil.copy(file, path)
    return path
