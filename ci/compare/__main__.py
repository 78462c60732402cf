"""`python -m ci.compare [--json FILE]`: ours and upstream's connector on this machine in one go, side by side.

Exit status 1 when ours gave a wrong answer, an error or a wait that idle conversations caused, or used CPU to retain.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from ci.compare.systems import EnginesAlone, Ours, System, Upstream
from ci.compare.trials import Bench
from ci.trial import MODEL, add_options, carry_out, topology
from neuron_pd.bench.client import session
from neuron_pd.bench.provenance import engine_info, host
from neuron_pd.bench.target import Endpoints, ruler
from neuron_pd.hosts.packages import vllm_version
from neuron_pd.launcher.live import live
from neuron_pd.launcher.preflight import check_topology
from neuron_pd.launcher.supervisor import Running, Supervisor
from neuron_pd.launcher.topology import Topology

DECODE_BLOCKS = 64
MAX_MODEL_LEN = 4096
IDLE_CPU = 0.005  # of a core: below what a process's CPU time resolves in the trial
ARTICLE_TTL = 480


def main(argv: list[str] | None = None) -> int:
    """Run both; the exit status."""
    options = arguments(argv)
    found = carry_out(compare(options, Console(stderr=True)), options.json)
    show(found, Console(width=110))
    for failure in found["failures"]:
        sys.stdout.write(f"FAILED: {failure}\n")
    return int(bool(found["failures"]))


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ci.compare", description="Ours and upstream's connector, side by side."
    )
    parser.add_argument("--lengths", default="1024,3072", help="history, tokens (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="turns a length and leg (default: %(default)s)")
    parser.add_argument(
        "--ttl", type=float, default=30, help="upstream's retention, s (default: %(default)s; its own: 480)"
    )
    add_options(parser, "compare", 18400)
    return parser.parse_args(argv)


async def compare(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Upstream first, then ours; what was found, and what of it ours must not show."""
    lengths = [int(text) for text in options.lengths.split(",")]
    found: dict[str, Any] = {"command": ["python", "-m", "ci.compare", *sys.argv[1:]], "ttl_s": options.ttl}
    for name in ("upstream", "ours"):
        made = engines(options, name)
        check_topology(made)
        with live(console) as progress:
            runnable = made if name == "ours" else EnginesAlone(made)
            async with Supervisor(runnable, progress) as running:
                console.print(f"{name}: measuring")
                found[name] = await measure(name, running, lengths, options)
                found["versions"] = await versions(running)
    return {**found, "host": host(), "failures": failures(found["ours"])}


def engines(options: argparse.Namespace, name: str) -> Topology:
    """P that keeps no prefix cache, as in the article; D with 64 blocks; the proxy, which only ours uses."""
    made = topology(
        options,
        connector="neuron-pd" if name == "ours" else name,
        max_model_len=MAX_MODEL_LEN,
        decoder_kv_blocks_ttl=int(options.ttl),
        run_dir=options.run_dir / name,
    )
    small = ("--num-gpu-blocks-override", str(DECODE_BLOCKS))
    prefill, decode = (spec.for_vllm(vllm_version()) for spec in (made.prefill, made.decode))
    return replace(made, prefill=prefill, decode=replace(decode, extra=(*decode.extra, *small)))


async def measure(name: str, running: Running, lengths: Sequence[int], options: argparse.Namespace) -> dict[str, Any]:
    async with session() as http:
        system: System
        if name == "ours":
            system = Ours(http, running.proxy_url)
        else:
            system = Upstream(http, running.prefill_url, running.decode_url)
        counted = await ruler(http, Endpoints(running.prefill_url), MODEL)
        return await Bench(system, http, running.decode_url, counted, options.ttl).run(lengths, options.repeats)


async def versions(running: Running) -> dict[str, Any]:
    async with session() as http:
        info = await engine_info(http, running.decode_url, running.token) or {}
    return {name: info[name] for name in ("vllm", "nixl", "torch", "version") if name in info}


def failures(ours: dict[str, Any]) -> list[str]:
    """What ours must never show, and showed."""
    edited, idle, expired = ours["edited_history"], ours["idle_conversations"], ours["after_expiry"]
    claims = {
        "an edited history got a wrong answer": edited["right"],
        "a turn after expiry got a wrong answer": expired["right"],
        f"a turn after expiry got HTTP {expired['status']}": expired["status"] == 200,
        f"a turn waited {idle['longest_s']} s": idle["longest_s"] < 3 * idle["median_s"],
        f"retention took {expired['engine_loop_cores']} of a core": expired["engine_loop_cores"] <= IDLE_CPU,
    }
    return [text for text, held in claims.items() if not held]


def show(found: dict[str, Any], console: Console) -> None:
    """The table, with what it leaves out of the article's set-up."""
    table = Table("", "upstream", "ours", title=f"vLLM {found['versions'].get('vllm')}, one core for P and one for D")
    for cells in rows(found):
        table.add_row(*cells)
    console.print(table)
    console.print(
        f"upstream holds blocks for {found['ttl_s']:g} s here instead of {ARTICLE_TTL}, which bounds the run: its "
        "waits grow with that. On CPU its worker's polling threads share the engines' cores, so compare ratios.",
        highlight=False,
    )


def rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The table's cells, upstream's and ours."""

    def both(cell: Any) -> tuple[str, str]:
        return cell(found["upstream"]), cell(found["ours"])

    table = []
    for length in found["ours"]["lengths"]:
        for name, label in (("prefill_ms", "prefill"), ("ttft_ms", "TTFT")):
            what = f"{label}, {int(length):,} tokens of history, OFF → ON"
            table.append((what, *both(lambda side, length=length, name=name: _ratio(side["lengths"][length], name))))
    return [
        *table,
        ("edited history", *both(lambda side: _answer(side["edited_history"]))),
        (
            "16 idle conversations, D of 64 blocks: longest wait (median)",
            *both(lambda side: "{longest_s} s ({median_s} s)".format(**side["idle_conversations"])),
        ),
        ("a turn after expiry", *both(lambda side: _answer(side["after_expiry"]))),
        (
            "D's engine loop while a conversation is retained",
            *both(lambda side: f"{side['after_expiry']['engine_loop_cores']:.2f} of a core"),
        ),
    ]


def _ratio(legs: dict[str, dict[str, float]], name: str) -> str:
    off, on = legs["off"][name], legs["on"][name]
    return f"{off:,.0f} → {on:,.0f} ms ({off / on:.1f}×)"


def _answer(trial: dict[str, Any]) -> str:
    if trial["status"] != 200:
        return f"HTTP {trial['status']}"
    return f"HTTP 200, {'right' if trial['right'] else 'WRONG'} answer"


if __name__ == "__main__":
    sys.exit(main())
