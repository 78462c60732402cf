"""The header of a records file: versions, flags, host and engines, so that figures can be judged and made again."""

import platform
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from neuron_pd import __version__
from neuron_pd.bench.client import aiohttp, session
from neuron_pd.core.control import INFO, STATS, TOKEN_HEADER
from neuron_pd.errors import EngineUnavailable


def host() -> dict[str, Any]:
    """This machine: processor, cores that this process may use, memory in bytes, kernel."""
    return {
        "cpu": _cpu_model(),
        "cores": len(psutil.Process().cpu_affinity() or [])
        if hasattr(psutil.Process, "cpu_affinity")
        else psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, platform.processor() or platform.machine())


async def engine_info(http: aiohttp.ClientSession, url: str | None, token: str | None) -> dict[str, Any] | None:
    """What an engine says of itself on its control path, else its vLLM version alone; None where it says nothing."""
    if url is None:
        return None
    if info := await _object(http, url + INFO, _headers(token)):
        return info
    version = await _object(http, f"{url}/version", {})
    return {"vllm": version["version"]} if version and "version" in version else None


async def engine_stats(url: str, token: str | None) -> dict[str, float]:
    """An engine's own counters and gauges. EngineUnavailable where its control path does not give them."""
    async with session() as http:
        if stats := await _object(http, url + STATS, _headers(token)):
            return stats
    raise EngineUnavailable(f"{url}{STATS} gives no answer: is its control token this one?")


def _headers(token: str | None) -> dict[str, str]:
    return {TOKEN_HEADER: token} if token else {}


async def _object(http: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> dict[str, Any] | None:
    try:
        async with http.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=10)) as answer:
            body = await answer.json(content_type=None) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def header(plan: Mapping[str, Any], engines: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """The header line: `plan` as JSON, what each engine said of itself, and the command line that ran it all."""
    return {
        "neuron_pd": __version__,
        "python": platform.python_version(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "plan": dict(plan),
        "engines": dict(engines),
        "host": host(),
    }
