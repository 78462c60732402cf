"""`python -m ci.agreement [--rounds N]`: vLLM's multi-turn benchmark and ours, on the same engines.

Each round, both hold conversations of the same shape through the proxy, each in words of its own; who goes first
changes from round to round. Printed: the median TTFT of each turn by either, their spreads over the rounds, and the
ratio. Exit status 1 when a request failed, when a turn after the first was not read back, or when the medians of a
turn are further apart than the rounds are; 3 where vLLM's benchmark cannot be had.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from ci.run import NOT_HERE
from ci.trial import MODEL, add_options, carry_out, topology
from neuron_pd.bench.client import aiohttp
from neuron_pd.bench.proxy.peers import Unavailable, multi_turn_benchmark
from neuron_pd.bench.text import words
from neuron_pd.bench.vllm_statistics import read_statistics
from neuron_pd.errors import NeuronPDError
from neuron_pd.launcher.live import live
from neuron_pd.launcher.preflight import check_topology
from neuron_pd.launcher.supervisor import Running, Supervisor
from neuron_pd.models import model_dir

THEIRS, OURS = "vLLM's", "ours"
HITS = 'neuron_pd_proxy_reuse_total{outcome="hit"'


@dataclass(slots=True)
class Seen:
    """TTFTs in milliseconds by turn, of all requests and of each round by its median, and requests that were lost."""

    every: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    rounds: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    lost: int = 0

    def add(self, statistics: Path, expected: int) -> None:
        """One round's file."""
        times: dict[int, list[float]] = defaultdict(list)
        for one in read_statistics(statistics):
            times[(one["input_num_turns"] + 1) // 2].append(one["ttft_ms"])
        for turn, found in times.items():
            self.every[turn] += found
            self.rounds[turn].append(median(found))
        self.lost += expected - sum(map(len, times.values()))


def conversations(number: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The conversations of one round: what both sides read from a file. An answer there says how long one is to be."""

    def messages(name: str) -> list[dict[str, str]]:
        said = []
        for turn in range(options.turns):
            asked = words(f"{name}/{turn}", options.first_chars if turn == 0 else options.user_chars)
            said.append({"role": "user", "content": asked})
            said.append({"role": "assistant", "content": words(f"{name}/{turn}/reply", options.reply_chars)})
        return said

    names = [f"round-{number}-talk-{one}" for one in range(options.conversations)]
    return [{"id": name, "messages": messages(name)} for name in names]


def hold_theirs(script: Path, running: Running, talk: Path, out: Path, log: Path) -> None:
    command = [str(script), "-i", str(talk), "-m", str(model_dir(MODEL)), "--served-model-name", MODEL]
    command += ["-u", running.proxy_url, "-p", "1", "-k", "1", "--no-early-stop", "--send-conversation-id"]
    _run([sys.executable, *command, "--stats-json-output", str(out)], log)


def hold_ours(running: Running, talk: Path, out: Path, log: Path) -> None:
    command = [sys.executable, "-m", "neuron_pd", "bench", "sweep", "--url", running.proxy_url, "--workload", str(talk)]
    command += ["--leg", "on", "--cache-bust", "none", "--no-ignore-eos", "--no-warm-up"]
    _run([*command, "--out", str(out.with_suffix(".jsonl")), "--stats-json-output", str(out)], log)


def _run(command: Sequence[str], log: Path) -> None:
    with log.open("a") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise NeuronPDError(f"{Path(command[1]).name} ended with status {done.returncode}; its log is {log}")


async def hits(running: Running) -> int:
    """Turns of which the proxy counts the reuse as a hit, so far."""
    async with aiohttp.ClientSession() as http, http.get(f"{running.proxy_url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(HITS)))


async def hold_all(
    script: Path, running: Running, options: argparse.Namespace
) -> tuple[dict[str, Seen], dict[str, int]]:
    """All rounds; what each saw, and how often its turns were read back."""
    seen, reused = {THEIRS: Seen(), OURS: Seen()}, {THEIRS: 0, OURS: 0}
    place, expected = options.run_dir, options.conversations * options.turns
    for number in range(options.rounds):
        for name in (THEIRS, OURS) if number % 2 == 0 else (OURS, THEIRS):
            side = "theirs" if name == THEIRS else "ours"
            talk, out = place / f"talk-{number}-{side}.json", place / f"{side}-{number}.json"
            talk.write_text(json.dumps(conversations(2 * number + (name == OURS), options)))
            before = await hits(running)
            if name == THEIRS:
                await asyncio.to_thread(hold_theirs, script, running, talk, out, place / "theirs.log")
            else:
                await asyncio.to_thread(hold_ours, running, talk, out, place / "ours.log")
            seen[name].add(out, expected)
            reused[name] += await hits(running) - before
    return seen, reused


def rows(seen: Mapping[str, Seen]) -> list[dict[str, Any]]:
    """One row a turn."""
    theirs, ours = seen[THEIRS], seen[OURS]
    return [
        {
            "turn": turn,
            "theirs_ms": round(median(theirs.every[turn]), 1),
            "theirs_spread_ms": _spread(theirs.rounds[turn]),
            "ours_ms": round(median(ours.every[turn]), 1),
            "ours_spread_ms": _spread(ours.rounds[turn]),
            "ratio": round(median(ours.every[turn]) / median(theirs.every[turn]), 3),
        }
        for turn in sorted(theirs.every.keys() & ours.every.keys())
    ]


def _spread(values: Sequence[float]) -> list[float]:
    return [round(min(values), 1), round(max(values), 1)]


def agrees(row: Mapping[str, Any]) -> bool:
    """Whether either median lies within the rounds of the other."""
    (low, high), (least, most) = row["theirs_spread_ms"], row["ours_spread_ms"]
    return bool(low <= row["ours_ms"] <= high or least <= row["theirs_ms"] <= most)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    script = multi_turn_benchmark(Console(stderr=True).print)
    engines = topology(options, max_model_len=8192)
    check_topology(engines)
    with live(Console(stderr=True)) as progress:
        async with Supervisor(engines, progress) as running:
            seen, reused = await hold_all(script, running, options)
    return {
        "turns": rows(seen),
        "lost": {name: one.lost for name, one in seen.items()},
        "read_back": reused,
        "expected": options.rounds * options.conversations * (options.turns - 1),
    }


def report(found: Mapping[str, Any]) -> Table:
    table = Table(title="TTFT by turn, ms: median (least to most of the rounds' medians)")
    for name in ("turn", THEIRS, OURS, "ours ÷ theirs", "agrees"):
        table.add_column(name, justify="right")
    for row in found["turns"]:
        sides = ["{:.1f} ({:.1f} – {:.1f})".format(row[f"{s}_ms"], *row[f"{s}_spread_ms"]) for s in ("theirs", "ours")]
        table.add_row(str(row["turn"]), *sides, f"{row['ratio']:.2f}", "yes" if agrees(row) else "NO")
    return table


def passed(found: Mapping[str, Any]) -> bool:
    read = all(count == found["expected"] for count in found["read_back"].values())
    return read and not any(found["lost"].values()) and all(map(agrees, found["turns"]))


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ci.agreement", description="vLLM's multi-turn benchmark, and ours."
    )
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--conversations", type=int, default=4, help="of each round (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=4, help="of each conversation (default: %(default)s)")
    parser.add_argument("--first-chars", type=int, default=6000, help="of the first message (default: %(default)s)")
    parser.add_argument("--user-chars", type=int, default=400, help="of each later one (default: %(default)s)")
    parser.add_argument("--reply-chars", type=int, default=100, help="of a reply (default: %(default)s)")
    add_options(parser, "agreement", 18450)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure; the exit status."""
    options = arguments(argv)
    try:
        found = carry_out(run(options), options.json)
    except Unavailable as why:
        sys.stderr.write(f"vLLM's multi-turn benchmark cannot be had: {why}\n")
        return NOT_HERE
    Console().print(report(found))
    sys.stdout.write(json.dumps({name: found[name] for name in ("lost", "read_back", "expected")}) + "\n")
    return 0 if passed(found) else 1


if __name__ == "__main__":
    sys.exit(main())
