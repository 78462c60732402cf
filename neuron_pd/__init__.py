"""Prefill/decode disaggregated serving for agents: KV that flows both ways in vLLM over NIXL."""

__version__ = "0.1.0"
