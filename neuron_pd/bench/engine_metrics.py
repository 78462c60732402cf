"""What an engine itself counted of its NIXL reads (vLLM's `/metrics`), before and after a request."""

import asyncio
import time

from prometheus_client.parser import text_string_to_metric_families

from neuron_pd.bench.client import aiohttp
from neuron_pd.bench.records import Transfers

_PREFIX = "vllm:nixl_"
_FIELDS = {
    "vllm:nixl_xfer_time_seconds_count": "count",
    "vllm:nixl_xfer_time_seconds_sum": "seconds",
    "vllm:nixl_bytes_transferred_sum": "bytes",
    "vllm:nixl_num_failed_transfers_total": "failed",
}
_PAUSE = 0.05


def parse_transfers(page: str) -> Transfers | None:
    """Sum the transfers of every engine on a metrics page; None where the page has no NIXL metrics at all."""
    lines = [line for line in page.splitlines() if line.startswith((_PREFIX, f"# TYPE {_PREFIX}"))]
    if not lines:
        return None
    totals = dict.fromkeys(_FIELDS.values(), 0.0)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if name := _FIELDS.get(sample.name):
                totals[name] += sample.value
    return Transfers(**totals)


class EngineMeter:
    """Reads one engine's transfers; without a `url` it reads nothing, and every answer is None."""

    def __init__(self, http: aiohttp.ClientSession, url: str | None, patience: float = 1.0) -> None:
        """`patience`: seconds that `since` waits for a transfer that must still show up."""
        self._http = http
        self._url = url
        self._patience = patience

    async def read(self) -> Transfers | None:
        if self._url is None:
            return None
        try:
            async with self._http.get(f"{self._url}/metrics", timeout=aiohttp.ClientTimeout(total=10)) as answer:
                return parse_transfers(await answer.text()) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    async def since(self, before: Transfers | None, *, expected: bool) -> Transfers | None:
        """The transfers after `before`, once two readings agree.

        The engine publishes them a step late: where one is `expected`, wait for it, `patience` seconds at most.
        """
        if before is None:
            return None
        deadline = time.monotonic() + self._patience
        last = await self.read()
        while time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE)
            now = await self.read()
            if now == last and not (expected and now is not None and now.count <= before.count):
                break
            last = now
        return None if last is None else last.since(before)
