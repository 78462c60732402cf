"""`neuron-pd up`: a prefill engine, a decode engine and the proxy on this machine."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from neuron_pd.cli.ports import ports

if TYPE_CHECKING:
    from rich.console import Console

    from neuron_pd.launcher.supervisor import Running
    from neuron_pd.launcher.topology import Topology

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Limits(NamedTuple):
    """The supervisor's, in seconds."""

    start_timeout: float
    stop_grace: float


@click.command("up")
@click.option("--model", default="tiny", show_default=True, metavar="DIR|tiny|smollm2", help="The model to serve.")
@click.option("--served-model-name", "served_name", help="Its name for clients. [the model's]")
@click.option("--instance", default="cpu", show_default=True, help="Kind of machine: a profile, or its file.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address the proxy listens on.")
@ports
@click.option("--bidir/--no-bidir", default=True, show_default=True, help="KV also flows from decode to prefill.")
@click.option(
    "--prefill-prefix-caching/--no-prefill-prefix-caching",
    default=True,
    show_default=True,
    help="Off to measure as if the prefill engine's cache had been evicted.",
)
@click.option("--kv-cache-gib", type=click.IntRange(1), help="Memory for KV of each engine, GiB. [2]")
@click.option("--dtype", help="Precision. [float32]")
@click.option("--max-model-len", type=click.IntRange(1), help="Longest sequence, tokens. [the model's, 32768 at most]")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Directory for the logs. [a new one of this user]")
@click.option(
    "--start-timeout",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="For each of engines and proxy to answer.",
)
@click.option(
    "--stop-timeout",
    "stop_grace",
    type=click.FloatRange(0),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="For each of them to end by itself before it is killed.",
)
@click.argument("vllm_args", nargs=-1, metavar="[-- VLLM_ARGS...]")
def command(
    model: str,
    start_timeout: float,
    stop_grace: float,
    vllm_args: Sequence[str],
    served_name: str | None,
    **given: Any,
) -> None:
    """Run a prefill engine, a decode engine and the proxy on this machine until Ctrl-C.

    Logs go to files. When one of the three ends by itself, the others are stopped and the exit status is 1. Ctrl-C and
    SIGTERM stop everything: exit status 0 once it was ready, 128 + signal number before. What follows -- is passed on
    to both vLLM servers.
    """
    from rich.console import Console

    from neuron_pd.launcher.preflight import check_model, check_topology
    from neuron_pd.launcher.topology import cpu_topology
    from neuron_pd.models import resolve_model

    console = Console(stderr=True)
    check_model(model, hub=False)
    with console.status(f"model {model}") as status:
        directory = resolve_model(model, progress=status.update)
    name = served_name or (model if "/" not in model else None)
    topology = cpu_topology(directory, served_name=name, extra_args=tuple(vllm_args), **given)
    check_topology(topology)
    limits = Limits(start_timeout, stop_grace)
    raise SystemExit(asyncio.run(_until_told(topology, limits, console)))


async def _until_told(topology: "Topology", limits: Limits, console: "Console") -> int:
    """Run the topology until a signal; the exit status."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    received: list[signal.Signals] = []

    def tell(number: signal.Signals) -> None:
        received.append(number)
        told.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, tell, number)
    ready = asyncio.Event()
    serving = asyncio.ensure_future(_serve(topology, limits, console, ready))
    telling = asyncio.ensure_future(told.wait())
    await asyncio.wait([serving, telling], return_when=asyncio.FIRST_COMPLETED)
    telling.cancel()
    if not received:
        await serving
        return 0
    serving.cancel()
    await asyncio.wait([serving])
    if not serving.cancelled():
        serving.exception()  # it failed while it was being told to stop: seen, and of no interest
    return 0 if ready.is_set() else 128 + received[0]


async def _serve(topology: "Topology", limits: Limits, console: "Console", ready: asyncio.Event) -> None:
    from neuron_pd.launcher.live import live
    from neuron_pd.launcher.supervisor import Supervisor

    with live(console) as progress:
        console.print(f"logs: {topology.run_dir}", highlight=False, markup=False, soft_wrap=True)
        async with Supervisor(topology, progress, **limits._asdict()) as running:
            ready.set()
            _greet(running, console)
            await running.wait()


def _greet(running: "Running", console: "Console") -> None:
    console.print(
        f"ready: {running.proxy_url}/v1 (prefill {running.prefill_url}, decode {running.decode_url}); Ctrl-C stops it",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    click.echo(running.proxy_url)
