"""What the end-to-end tests ask an engine on its control path."""

import time
from collections.abc import Callable
from typing import Any

import httpx

TOKEN = "end-to-end"


def control(http: httpx.Client, url: str, verb: str, body: dict[str, Any] | None = None) -> httpx.Response:
    """GET a verb of the engine at `url`, or POST it with a body."""
    url, headers = f"{url}/neuron_pd/v1/{verb}", {"x-neuron-pd-token": TOKEN}
    return http.get(url, headers=headers) if body is None else http.post(url, json=body, headers=headers)


def settled(stats: Callable[[], dict[str, float]]) -> dict[str, float]:
    """An engine's gauges once nothing is held; a step or two after a reply at the latest."""
    for _ in range(100):
        found = stats()
        if not (found["open_leases"] or found["kv_blocks_used"]):
            break
        time.sleep(0.1)
    return found
