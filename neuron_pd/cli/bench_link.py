"""The engines of `bench sweep --emulate-link`: started for the run, each in an end of the link."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.bench.target import Endpoints

SPARE_TOKENS = 64


class Emulated(NamedTuple):
    """Where to send requests, with which control token, and how to set the link's rate."""

    endpoints: "Endpoints"
    token: str | None
    limit: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Engines:
    """What to start: an embedded model's name or a directory, P's `kv_recompute_threshold`, ports, room in tokens."""

    model: str
    threshold: str | None
    proxy_port: int
    tokens: int
    run_dir: Path

    def as_json(self) -> dict[str, Any]:
        return {"model": self.model, "threshold": self.threshold, "proxy_port": self.proxy_port}


def check_threshold(text: str | None) -> str | None:
    if text is not None and text != "auto" and not text.isdecimal():
        raise UsageError(f"--recompute-threshold {text!r} is neither a number of tokens nor auto")
    return text


@asynccontextmanager
async def emulated(engines: Engines, console: Console) -> AsyncIterator[Emulated]:
    """A link, the engines at its ends and the proxy, up while the context lasts. UsageError without root or tools."""
    from neuron_pd.bench.target import Endpoints
    from neuron_pd.launcher.link import Link
    from neuron_pd.launcher.linked import linked_topology
    from neuron_pd.launcher.live import live
    from neuron_pd.launcher.preflight import check_settings
    from neuron_pd.launcher.supervisor import Supervisor
    from neuron_pd.models import resolve_model

    planned = Link.plan()
    with console.status(f"model {engines.model}") as status:
        directory = await asyncio.to_thread(resolve_model, engines.model, progress=status.update)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with planned as link, ExitStack() as screen:
        topology = linked_topology(
            directory,
            link,
            proxy_port=engines.proxy_port,
            run_dir=engines.run_dir,
            threshold=engines.threshold,
            served_name=Path(engines.model).name,
            max_model_len=engines.tokens + SPARE_TOKENS,
        )
        for spec in (topology.topology.prefill, topology.topology.decode):
            check_settings(spec)
        progress = screen.enter_context(live(console))
        async with Supervisor(topology, progress) as running:
            screen.close()
            endpoints = Endpoints(running.proxy_url, running.prefill_url, running.decode_url)
            yield Emulated(endpoints, running.token, link.limit)
