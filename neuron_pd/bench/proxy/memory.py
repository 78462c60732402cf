"""Memory of a proxy that remembers many conversations, measured by the proxy's own package in a process of its own."""

import subprocess
import sys
from typing import Any

import orjson

from neuron_pd.bench.proxy.peers import Say
from neuron_pd.errors import EngineStartError


def measure_memory(conversations: int, say: Say) -> dict[str, Any]:
    """Bytes of resident memory a conversation."""
    say(f"memory of {conversations:,} conversations")
    argv = (sys.executable, "-m", "neuron_pd.proxy.footprint", str(conversations))
    done = subprocess.run(argv, capture_output=True, check=False)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise EngineStartError(f"memory could not be measured: {lines[-1]}")
    figures: dict[str, Any] = orjson.loads(done.stdout)
    return figures
