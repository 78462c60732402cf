"""What an engine itself counted (vLLM's `/metrics`, neuron-pd's control path), before and after a request or a cell."""

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from neuron_pd.bench.client import aiohttp
from neuron_pd.bench.provenance import engine_stats
from neuron_pd.bench.records import Counters, Phases, Transfers
from neuron_pd.errors import EngineUnavailable

_TRANSFERS = {
    "vllm:nixl_xfer_time_seconds_count": "count",
    "vllm:nixl_xfer_time_seconds_sum": "seconds",
    "vllm:nixl_bytes_transferred_sum": "bytes",
    "vllm:nixl_num_failed_transfers_total": "failed",
    "vllm:nixl_num_descriptors_sum": "descriptors",
}
_PHASES = {
    "vllm:request_prefill_time_seconds_count": "count",
    "vllm:time_to_first_token_seconds_sum": "first_token",
    "vllm:request_queue_time_seconds_sum": "queued",
    "vllm:request_prefill_time_seconds_sum": "prefill",
}
_FAMILIES = (
    "vllm:nixl_",
    "vllm:time_to_first_token_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
)
_WANTED = tuple(start for name in _FAMILIES for start in (name, f"# TYPE {name}"))
_PAUSE = 0.05
_Kind = TypeVar("_Kind", bound=Counters)


class Reading(NamedTuple):
    """One look at an engine's metrics; None for a group that its page does not have."""

    transfers: Transfers | None = None
    phases: Phases | None = None

    def since(self, before: "Reading") -> "Reading":
        return Reading(_since(self.transfers, before.transfers), _since(self.phases, before.phases))


def _since(now: _Kind | None, before: _Kind | None) -> _Kind | None:
    return None if now is None or before is None else now.since(before)


def parse_metrics(page: str) -> Reading:
    """Sum the transfers and phases of every engine on a metrics page."""
    totals: dict[str, float] = {}
    lines = [line for line in page.splitlines() if line.startswith(_WANTED)]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return Reading(_group(Transfers, _TRANSFERS, totals), _group(Phases, _PHASES, totals))


def _group(kind: type[_Kind], names: Mapping[str, str], totals: Mapping[str, float]) -> _Kind | None:
    found = {field: totals[name] for name, field in names.items() if name in totals}
    return kind(**found) if found else None


class EngineMeter:
    """Reads one engine; without a `url` it reads nothing, and every answer is empty."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str | None, patience: float = 1.0, token: str | None = None
    ) -> None:
        """`patience`: seconds that `since` waits for a transfer that must still show up. `token`: for `stats`."""
        self._http = http
        self._url = url
        self._patience = patience
        self._token = token

    async def read(self) -> Reading:
        if self._url is None:
            return Reading()
        try:
            async with self._http.get(f"{self._url}/metrics", timeout=aiohttp.ClientTimeout(total=10)) as answer:
                return parse_metrics(await answer.text()) if answer.status == 200 else Reading()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return Reading()

    async def since(self, before: Reading, *, expected: bool) -> Reading:
        """What was counted after `before`, once two readings agree.

        The engine publishes transfers a step late: where one is `expected`, wait for it, `patience` seconds at most.
        """
        if before == Reading():
            return before
        deadline = time.monotonic() + self._patience
        last = await self.read()
        while time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE)
            now = await self.read()
            if now == last and not (expected and _nothing_came(now.transfers, before.transfers)):
                break
            last = now
        return last.since(before)

    async def stats(self) -> dict[str, float]:
        """The numbers of the control path; empty where there is none."""
        if self._url is None:
            return {}
        try:
            stats = await engine_stats(self._url, self._token)
        except EngineUnavailable:
            return {}
        return {name: value for name, value in stats.items() if isinstance(value, int | float)}


def _nothing_came(now: Transfers | None, before: Transfers | None) -> bool:
    return now is not None and before is not None and now.count <= before.count


def moved(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """How far each number moved; those that did not are left out."""
    return {name: value - before.get(name, 0) for name, value in now.items() if value != before.get(name, 0)}
