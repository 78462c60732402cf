"""Engines on the two machines that the documentation is about."""

import json
from typing import Any

from neuron_pd.launcher.request import Request
from neuron_pd.launcher.serve import ServeSpec, plan

QWEN = "Qwen/Qwen3-32B"
MODELS = (
    "Qwen/Qwen3-32B", "Qwen/Qwen3-8B", "meta-llama/Llama-3.3-70B-Instruct", "openai/gpt-oss-120b", "openai/gpt-oss-20b",
)  # fmt: skip
TWO_NODES = {"prefill_host": "10.0.0.1", "decode_host": "10.0.0.2"}
ONE_NODE = {"prefill_host": "10.0.0.1", "decode_host": "10.0.0.1"}


def request(instance: str, role: str = "prefill", *flags: str, **given: Any) -> Request:
    said: dict[str, Any] = {"model": QWEN, **TWO_NODES, **given}
    return Request(role=role, instance=instance, extra_args=flags, **said)


def engine(instance: str, role: str = "prefill", *flags: str, **given: Any) -> ServeSpec:
    return plan(request(instance, role, *flags, **given))


def flags_of(spec: ServeSpec) -> dict[str, str]:
    """The command line's flags; one without a value is "". Fails on a flag that is there twice."""
    found: dict[str, str] = {}
    name = ""
    for word in spec.argv()[len(spec.command) :]:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            assert name not in found
            found[name] = value
        else:
            found[name] = word
    return found


def neuron_config(spec: ServeSpec) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(flags_of(spec)["--additional-config"])["neuron_config"]
    return config
