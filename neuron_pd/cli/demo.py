"""`neuron-pd demo`: the whole of it on this machine, measured and proved."""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from neuron_pd.cli import INTERRUPTED
from neuron_pd.cli.ports import ports as port_options
from neuron_pd.errors import EngineError, UsageError

if TYPE_CHECKING:
    from neuron_pd.bench.proofs import Proof
    from neuron_pd.bench.records import Record
    from neuron_pd.bench.sweep import SweepPlan
    from neuron_pd.bench.target import Endpoints
    from neuron_pd.launcher.supervisor import Running
    from neuron_pd.launcher.topology import Topology

LENGTHS = {"tiny": "1024,2048,4096,8192", "smollm2": "512,1024,2048"}
MAX_MODEL_LEN = {"tiny": 16384, "smollm2": 8192}
RETENTION = ("pinned_blocks", "open_leases", "kv_blocks_used")


@dataclass(frozen=True, slots=True)
class Findings:
    """What a demonstration saw. `header` is that of the records; `retention` is D's own count after the last turn."""

    records: "Sequence[Record]"
    header: dict[str, Any]
    proofs: "Sequence[Proof]"
    retention: dict[str, float]

    @property
    def versions(self) -> dict[str, str]:
        engine = self.header["engines"]["prefill"]
        return {"neuron_pd": engine["version"], **{name: engine[name] for name in ("vllm", "nixl", "torch")}}

    def failures(self) -> list[str]:
        """What did not hold, one line each; empty when everything did."""
        from neuron_pd.bench.figures import answers

        found = [f"{proof.name}: {proof.seen}" for proof in self.proofs if not proof.held]
        equal, total = answers(self.records)
        if equal < total or not total:
            found.append(f"{equal} of {total} answers with reuse equal the answers without")
        if failed := [record for record in self.records if not record.ok]:
            found.append(f"{len(failed)} requests failed; the first: {failed[0].error}")
        if any(self.retention.values()):
            found.append(f"the decode engine holds blocks between turns: {self.retention}")
        return found

    def as_json(self) -> dict[str, Any]:
        from neuron_pd.bench.figures import demo_json

        proofs = {proof.name: proof.held for proof in self.proofs}
        rest = {"proofs": proofs, "retention": self.retention, "versions": self.versions, "run": self.header}
        return {**demo_json(self.records), **rest}


@click.command("demo")
@click.option("--model", type=click.Choice(list(LENGTHS)), default="tiny", show_default=True, help="Embedded model.")
@click.option("--lengths", help="First prompts, tokens, comma-separated. [by model]")
@click.option("--turns", default=4, show_default=True, help="Turns of each conversation.")
@click.option("--out", type=click.Path(path_type=Path), help="Directory for records, report and logs. [results/demo-…]")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write what was found.")
@port_options
def command(
    model: str, lengths: str | None, turns: int, out: Path | None, json_file: Path | None, **ports: Any
) -> None:
    """Show it all on this machine: KV in both directions between real engines, the gain measured, the answers equal.

    Makes the model, starts a prefill engine, a decode engine and the proxy, holds the same conversations with reuse
    off and on, proves three hard cases against cold runs, prints the table, and stops everything. Exit status 1 when
    anything that it claims did not hold.
    """
    from neuron_pd.bench.sweep import SweepPlan
    from neuron_pd.bench.target import ServedModel, check_room
    from neuron_pd.cli.values import token_counts
    from neuron_pd.launcher.preflight import check_topology
    from neuron_pd.launcher.topology import cpu_topology
    from neuron_pd.models import model_dir

    console = Console(stderr=True)
    place = out or Path("results") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    plan = SweepPlan(token_counts(lengths or LENGTHS[model]), turns, model=model)
    check_room(ServedModel(model, MAX_MODEL_LEN[model]), plan.lengths, plan.later_tokens)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise UsageError(f"there is no directory {json_file.absolute().parent}: choose another --json")
    with console.status(f"model {model}") as status:
        directory = model_dir(model, progress=status.update)
    topology = cpu_topology(
        directory,
        served_name=model,
        max_model_len=MAX_MODEL_LEN[model],
        # A prefill engine that never keeps a conversation: what eviction makes of it in the end.
        prefill_prefix_caching=False,
        run_dir=place / "logs",
        **ports,
    )
    check_topology(topology)
    try:
        findings = asyncio.run(_demonstrate(topology, plan, place, console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted: everything was stopped")
        raise SystemExit(INTERRUPTED) from None
    _tell(findings, place)
    if json_file is not None:
        json_file.write_text(json.dumps(findings.as_json(), indent=2) + "\n")
    if failures := findings.failures():
        raise EngineError("; ".join(failures))


async def _demonstrate(topology: "Topology", plan: "SweepPlan", place: Path, console: Console) -> Findings:
    from neuron_pd.bench.target import Endpoints
    from neuron_pd.launcher.live import live
    from neuron_pd.launcher.supervisor import Supervisor

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with ExitStack() as screen:
        progress = screen.enter_context(live(console))
        async with Supervisor(topology, progress) as running:
            screen.close()
            endpoints = Endpoints(running.proxy_url, running.prefill_url, running.decode_url)
            measuring = asyncio.ensure_future(_measure(endpoints, plan, running.token, place, console))
            findings = await _unless_one_dies(measuring, running)
            console.print("stopping the engines")
            return findings


async def _unless_one_dies(measuring: "asyncio.Future[Findings]", running: "Running") -> Findings:
    """What is measured; EngineStartError as soon as an engine or the proxy ends instead."""
    dying = asyncio.ensure_future(running.wait())
    both: list[asyncio.Future[Any]] = [measuring, dying]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not measuring.done():
            await dying
        return await measuring
    finally:
        for future in both:
            future.cancel()


async def _measure(
    endpoints: "Endpoints", plan: "SweepPlan", token: str | None, place: Path, console: Console
) -> Findings:
    from neuron_pd.bench.progress import live
    from neuron_pd.bench.proofs import prove
    from neuron_pd.bench.provenance import engine_stats
    from neuron_pd.bench.records_file import RecordWriter
    from neuron_pd.bench.sweep import describe, run_sweep

    plan, header = await describe(plan, endpoints, ["neuron-pd", *sys.argv[1:]], token)
    with RecordWriter(place / "records.jsonl", header) as writer, live(console) as progress:
        records = await run_sweep(plan, endpoints, writer.write, progress)
    with console.status("proving the hard cases against cold runs"):
        proofs = await prove(endpoints, plan.model)
        stats = await engine_stats(endpoints.all[-1], token)
    return Findings(records, header, proofs, {name: stats[name] for name in RETENTION})


def _tell(findings: Findings, place: Path) -> None:
    from neuron_pd.bench import figures
    from neuron_pd.bench.records import Run
    from neuron_pd.bench.report import write_report
    from neuron_pd.bench.tables import for_terminal

    console = Console()
    rows = figures.summary(findings.records)
    console.print(for_terminal(rows))
    equal, total = figures.answers(findings.records)
    console.print(f"answers    {equal} of {total} with reuse equal those without", highlight=False)
    for proof in findings.proofs:
        mark = "[green]✓[/green]" if proof.held else "[red]✗[/red]"
        console.print(f"{mark} {proof.claim}: {proof.seen}", highlight=False)
    held = ", ".join(f"{name} {value:.0f}" for name, value in findings.retention.items())
    console.print(f"retention  the decode engine says, after the last turn: {held}", highlight=False)
    for warning in figures.warnings(findings.records):
        console.print(f"note: {warning}", highlight=False, markup=False)
    page = write_report(Run(findings.header, list(findings.records)), place)
    console.print(f"report     {page}", highlight=False, markup=False, soft_wrap=True)
