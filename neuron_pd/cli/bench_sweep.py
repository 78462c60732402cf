"""`neuron-pd bench sweep`: measure, and keep every request."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from neuron_pd.cli import INTERRUPTED
from neuron_pd.cli.values import base_url, numbers, token_counts
from neuron_pd.errors import EngineError, UsageError
from neuron_pd.hosts.addresses import HERE, PROXY_PORT

if TYPE_CHECKING:
    from neuron_pd.bench.records import Cell, Record
    from neuron_pd.bench.records_file import RecordWriter
    from neuron_pd.bench.sweep import Key, SweepPlan
    from neuron_pd.bench.target import Endpoints
    from neuron_pd.cli.bench_link import Engines

LEGS = {"both": ("off", "on"), "on": ("on",), "off": ("off",)}
PRESETS = ("article",)
OWN_LENGTHS_ROOM = 16384  # tokens that the engines make room for, where a file says how long its conversations are
DEFAULT_URL = f"http://{HERE}:{PROXY_PORT}"


@dataclass(slots=True)
class Session:
    """One sweep on its way into a file: what is planned, what was done before, and what is measured now.

    `engines` are to be started for it, where it emulates the link between them.
    """

    plan: "SweepPlan"
    endpoints: "Endpoints"
    path: Path
    engines: "Engines | None" = None
    done: "frozenset[Key]" = frozenset()
    records: "list[Record]" = field(default_factory=list)
    cells: "list[Cell]" = field(default_factory=list)


@click.command()
@click.option("--url", callback=base_url, help=f"The proxy. [{DEFAULT_URL}]")
@click.option("--prefill-url", callback=base_url, help="The prefill engine, for what it counts.")
@click.option("--decode-url", callback=base_url, help="The decode engine, for what it counts.")
@click.option("--preset", type=click.Choice(PRESETS), help="Lengths, turns and sizes of the published measurement.")
@click.option("--lengths", metavar="TOKENS,...", help="First prompts. [1024,2048,4096,8192]")
@click.option("--turns", type=int, help="Turns of each conversation. [4, or all that a file has]")
@click.option("--user-tokens", type=int, help="Tokens of each later user message. [150]")
@click.option("--reply-tokens", type=int, help="Tokens of each reply. [32]")
@click.option("--workload", metavar="plain|agent|FILE", help="What is said. [plain]")
@click.option("--time-scale", type=float, help="Seconds that a second of a trace lasts. [1]")
@click.option("--concurrency", metavar="N,...", callback=numbers, help="Conversations at a time, closed loop. [1]")
@click.option("--rate", "rates", metavar="R,...", callback=numbers, help="Conversations arriving a second, open loop.")
@click.option("--conversations", type=int, help="Conversations of each cell. [by the load; all of a file]")
@click.option("--think", metavar="SECONDS,...", callback=numbers, help="Pause before each later turn. [0]")
@click.option("--emulate-link", "links", metavar="RATE,...",
              help="Start P and D joined by a link of each rate, such as 1gbit. Needs root.")  # fmt: skip
@click.option("--recompute-threshold", "threshold", metavar="TOKENS|auto", help="P's, with --emulate-link. [64]")
@click.option("--proxy-port", type=click.IntRange(1, 65535), help=f"The proxy's, with --emulate-link. [{PROXY_PORT}]")
@click.option("--leg", type=click.Choice(list(LEGS)), default="both", show_default=True, help="Reuse off, on, or both.")
@click.option("--repeats", type=int, help="Times that everything is measured, with words of its own. [1]")
@click.option("--warm-up/--no-warm-up", default=True, show_default=True, help="Two unrecorded turns first.")
@click.option("--cache-bust", metavar="salt|prefix|none", help="What keeps conversations apart in caches. [salt]")
@click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="Replies of the length asked for.")
@click.option("--max-errors", type=click.FloatRange(0, 1), default=0.0, show_default=True, metavar="SHARE",
              help="Failed requests beyond which the exit status is 1.")  # fmt: skip
@click.option("--seed", type=int, help="Chooses the words and the arrivals. [0]")
@click.option("--model", help="The served model's name, or the one to start. [the first that is served; tiny]")
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the run, or a .jsonl file. [results/TIME]")
@click.option("--resume", type=click.Path(path_type=Path), help="Go on with an interrupted run, as it was planned.")
@click.option("--stats-json-output", "stats_json", type=click.Path(path_type=Path, dir_okay=False),
              help="Also write per-request statistics as vLLM's multi-turn benchmark does.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON instead of a table.")
def sweep(
    url: str | None,
    prefill_url: str | None,
    decode_url: str | None,
    out: Path | None,
    resume: Path | None,
    max_errors: float,
    stats_json: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Hold the same conversations with reuse off and on, and record every request.

    Ctrl-C keeps what was measured, and --resume goes on from there. Exit status 1 when requests failed.
    """
    urls = {"proxy": url, "prefill": prefill_url, "decode": decode_url}
    told = {name: value for name, value in urls.items() if value}
    if told and given["links"]:
        raise UsageError("--emulate-link starts engines of its own: leave out the URLs")
    session = _resumed(resume, told) if resume else _new(out, told, given)
    records = session.records
    try:
        asyncio.run(_measure(session, resume is not None))
    except (KeyboardInterrupt, asyncio.CancelledError):
        kept = f"{len(records)} measured requests are kept; go on with --resume {session.path}"
        click.echo(f"interrupted: {kept if records else 'nothing was measured'}", err=True)
        raise SystemExit(INTERRUPTED) from None
    finally:
        _finish(session, stats_json, as_json)
    failed = [record for record in records if not record.ok]
    if len(failed) > max_errors * len(records):
        raise EngineError(f"{len(failed)} of {len(records)} requests failed; the first: {failed[0].error}")


def _new(out: Path | None, urls: dict[str, str], given: dict[str, Any]) -> Session:
    from neuron_pd.bench.records_file import RECORDS_NAME, check_new
    from neuron_pd.bench.target import Endpoints

    place = out or Path("results") / f"{datetime.now():%Y%m%d-%H%M%S}"
    path = place if place.suffix == ".jsonl" else place / RECORDS_NAME
    check_new(path)
    started = {name: given.pop(name) for name in ("threshold", "proxy_port")}
    plan = _plan(**given)
    if not plan.links:
        if any(started.values()):
            raise UsageError("--recompute-threshold and --proxy-port are for the engines that --emulate-link starts")
        return Session(plan, Endpoints(**{"proxy": DEFAULT_URL, **urls}), path)
    session = Session(plan, Endpoints(""), path)
    session.engines = _engines(session, {**started, "model": plan.model or "tiny"})
    # A directory's model is served under another name: the first that is served is the only one.
    session.plan = replace(plan, model=None)
    return session


def _engines(session: Session, given: dict[str, Any]) -> "Engines":
    from neuron_pd.bench.records_file import RECORDS_NAME
    from neuron_pd.bench.workloads import workload
    from neuron_pd.cli.bench_link import Engines, check_threshold
    from neuron_pd.launcher.link import bits_per_second, check_possible

    for rate in session.plan.links:
        bits_per_second(rate)
    check_possible()
    plan, threshold = session.plan, check_threshold(given["threshold"])
    sized = workload(plan.workload).sized
    tokens = max(plan.lengths) + plan.later_tokens if sized else OWN_LENGTHS_ROOM
    place = session.path.with_suffix("") / "logs" if session.path.name != RECORDS_NAME else session.path.parent / "logs"
    return Engines(given["model"], threshold, given["proxy_port"] or PROXY_PORT, tokens, place)


def _plan(preset: str | None, leg: str, lengths: str | None, links: str | None, **given: Any) -> "SweepPlan":
    from neuron_pd.bench.sweep_plan import ARTICLE, SweepPlan
    from neuron_pd.bench.workloads import SYNTHETIC

    chosen = {name: value for name, value in given.items() if value is not None}
    if lengths is not None:
        chosen["lengths"] = token_counts(lengths)
    if links is not None:
        chosen["links"] = tuple(rate.strip() for rate in links.split(","))
    if chosen.get("rates") and chosen.get("concurrency"):
        raise UsageError("--rate and --concurrency are two kinds of load: choose one")
    if chosen.get("workload") not in (None, *SYNTHETIC):
        chosen.setdefault("turns", 0)
    return SweepPlan(legs=LEGS[leg], **{**(ARTICLE if preset else {}), **chosen})


def _resumed(resume: Path, urls: dict[str, str]) -> Session:
    """The session that a run's header describes, less the cells that were measured without a failure."""
    from neuron_pd.bench.records import finished
    from neuron_pd.bench.records_file import read_run, records_path
    from neuron_pd.bench.sweep_plan import SweepPlan
    from neuron_pd.bench.target import Endpoints

    run = finished(read_run(resume))
    try:
        plan = SweepPlan.from_json(run.header["plan"])
        endpoints = Endpoints(**{**run.header["urls"], **urls})
        emulated = run.header.get("emulated")
    except (KeyError, TypeError):
        raise UsageError(f"{resume} does not say how it was planned: it cannot be gone on with") from None
    done = frozenset(cell.key for cell in run.cells)
    session = Session(plan, endpoints, records_path(resume), None, done, run.records, run.cells)
    if plan.links:
        if not isinstance(emulated, dict):
            raise UsageError(f"{resume} does not say which engines it started: it cannot be gone on with")
        session.engines, session.plan = _engines(session, emulated), replace(plan, model=None)
    return session


async def _measure(session: Session, resumed: bool) -> None:
    from neuron_pd.bench.progress import live
    from neuron_pd.bench.records import Record
    from neuron_pd.bench.sweep import describe, run_sweep

    async with _servers(session) as (endpoints, token, limit):
        plan, header = await describe(session.plan, endpoints, ["neuron-pd", *sys.argv[1:]], token)
        if session.engines is not None:
            header["emulated"] = session.engines.as_json()
        with _writer(session, header, resumed) as writer, live(Console(stderr=True)) as progress:

            def sink(line: "Record | Cell") -> None:
                writer.write(line)
                if isinstance(line, Record):
                    session.records.append(line)
                else:
                    session.cells.append(line)

            await run_sweep(plan, endpoints, sink, progress, done=session.done, token=token, limit_link=limit)


@asynccontextmanager
async def _servers(session: Session) -> "AsyncIterator[tuple[Endpoints, str | None, Callable[[str], None] | None]]":
    """The servers that there are, or those that are started for this run at both ends of a link."""
    if session.engines is None:
        yield session.endpoints, None, None
        return
    from neuron_pd.cli.bench_link import emulated

    async with emulated(session.engines, Console(stderr=True)) as started:
        yield started


def _writer(session: Session, header: dict[str, Any], resumed: bool) -> "RecordWriter":
    from neuron_pd.bench.records import Run
    from neuron_pd.bench.records_file import RecordWriter, read_run

    if not resumed:
        return RecordWriter(session.path, header)
    before = read_run(session.path)
    earlier = [*before.header.get("resumed", []), {name: header[name] for name in ("started_at", "command")}]
    return RecordWriter.resume(session.path, Run({**before.header, "resumed": earlier}, session.records, session.cells))


def _finish(session: Session, stats_json: Path | None, as_json: bool) -> None:
    if not session.records:
        return
    show_figures(session.records, as_json, cells=session.cells)
    if stats_json is not None:
        from neuron_pd.bench.vllm_statistics import write_statistics

        write_statistics(session.records, stats_json)
    message = f"records: {session.path}\nreport:  neuron-pd bench report {session.path}"
    Console(stderr=True).print(message, highlight=False, markup=False, soft_wrap=True)


def show_figures(
    records: "Sequence[Record]", as_json: bool, notes: Sequence[str] = (), cells: "Sequence[Cell]" = ()
) -> None:
    """The figures on stdout: tables and what to know about them, or JSON."""
    from neuron_pd.bench import figures
    from neuron_pd.bench.tables import for_terminal

    if as_json:
        click.echo(json.dumps(figures.demo_json(records, cells), indent=2))
        return
    console = Console()
    rows = figures.summary(records, cells)
    console.print(for_terminal(rows))
    equal, total = figures.answers(records)
    if total:
        console.print(f"answers: {equal} of {total} ON answers equal the OFF answers", highlight=False)
    for warning in (*notes, *figures.warnings(records)):
        console.print(f"note: {warning}", highlight=False, markup=False)
