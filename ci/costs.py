"""`python -m ci.costs [--json FILE] [--no-engine]`: what verification and retention cost, beside their goals.

Fingerprinting and the ledger are measured in this process, the rest on a decode engine of its own, whose model is the
tiny one: the control path as a router sees it, over one kept connection, and how often the engine's loop wakes up.
Exit status 1 when a goal is missed.
"""

import argparse
import asyncio
import http.client
import json
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from ci.compare.trials import engine_process
from neuron_pd.bench.text import words
from neuron_pd.cli import INTERRUPTED
from neuron_pd.core.control import ACQUIRE, PREFIX, RELEASE, STATS, TOKEN_HEADER
from neuron_pd.core.fingerprint import DIGEST_BYTES, Fingerprint, Seed
from neuron_pd.core.ledger import Ledger, Record
from neuron_pd.errors import EngineError, NeuronPDError
from neuron_pd.launcher.live import live
from neuron_pd.launcher.supervisor import Supervisor
from neuron_pd.launcher.topology import Child, Topology, cpu_topology
from neuron_pd.models import model_dir

PROMPT_TOKENS = 128 * 1024
BLOCK_SIZES = (16, 32, 128)  # vLLM's on GPUs, on Neuron and on CPUs
LEDGER_BYTES = 64 * 2**20
HASH_BYTES = 32
ROUNDS = 200
IDLE_SECONDS = 10.0
HANDLE = "costs"
GOALS = {"fingerprint_ms": 10.0, "acquire_ms": 2.0, "ledger_share": 1.0, "idle_wakeups": 0.0}


def fingerprint_ms(rounds: int = 30) -> dict[str, float]:
    """By block size, this process's CPU time for one long prompt: the least of `rounds`, which others only add to."""
    random = Random(0)
    tokens = [random.randrange(150_000) for _ in range(PROMPT_TOKENS)]
    seed = Seed("model", key="token")
    found = {}
    for size in BLOCK_SIZES:
        taken = []
        for _ in range(rounds):
            before = time.process_time()
            Fingerprint.of(tokens, size, seed)
            taken.append(time.process_time() - before)
        found[str(size)] = round(min(taken) * 1000, 2)
    return found


def ledger_share(blocks: int, max_bytes: int = LEDGER_BYTES) -> float:
    """Memory of a ledger that was offered twice what it may hold, in records of `blocks` blocks, over its bound."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ledger, offered = Ledger(max_bytes), 0
    while offered < 2 * len(ledger) + 100:
        chain = Fingerprint(16, os.urandom(blocks * DIGEST_BYTES))
        ledger.put(f"{offered:032x}", Record(os.urandom(blocks * HASH_BYTES), HASH_BYTES, chain))
        offered += 1
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return round(held / max_bytes, 3)


@dataclass(frozen=True, slots=True)
class DecodeAlone:
    """The decode engine of a topology, to supervise."""

    topology: Topology

    @property
    def run_dir(self) -> Path:
        return self.topology.run_dir

    def stages(self) -> Sequence[Sequence[Child]]:
        return [[child for child in self.topology.stages()[0] if child.name == "decode"]]

    def urls(self) -> Mapping[str, str]:
        return self.topology.urls()

    def token(self) -> str | None:
        return self.topology.token()


class Router:
    """One kept connection to an engine."""

    def __init__(self, port: int, token: str | None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"content-type": "application/json", **({TOKEN_HEADER: token} if token else {})}

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any], float]:
        """The status, the answer, and the milliseconds until it was there."""
        payload = None if body is None else json.dumps(body)
        started = time.perf_counter()
        self._connection.request("GET" if body is None else "POST", path, payload, self._headers)
        answer = self._connection.getresponse()
        raw = answer.read()
        return answer.status, json.loads(raw), (time.perf_counter() - started) * 1000

    def until_idle(self) -> None:
        """Until the engine holds nothing, and has had time to go to sleep."""
        while any(self.ask(STATS)[1][name] for name in ("open_leases", "kv_blocks_used")):
            time.sleep(0.01)
        time.sleep(0.02)


def control_path(router: Router) -> dict[str, dict[str, float]]:
    """Milliseconds, median and 99th percentile, of requests that go further and further into an idle engine."""
    taken: dict[str, list[float]] = {"server": [], "engine": [], "acquire": []}
    for _ in range(ROUNDS):
        router.until_idle()
        taken["server"].append(router.ask(PREFIX + "nothing")[2])
        taken["engine"].append(router.ask(STATS)[2])
        status, answer, milliseconds = router.ask(ACQUIRE, {"handle": HANDLE})
        if status != 200:
            raise EngineError(f"acquire: HTTP {status}: {answer}")
        taken["acquire"].append(milliseconds)
        router.ask(RELEASE, {"lease": answer["kv_transfer_params"]["remote_request_id"]})
    return {
        name: {"median": round(statistics.median(times), 2), "p99": round(statistics.quantiles(times, n=100)[-1], 2)}
        for name, times in taken.items()
    }


def wakeups(engine: psutil.Process, seconds: float) -> int:
    """How often the engine's loop (its main thread) went to sleep and woke up again; each step does at least once."""
    before = _switches(engine.pid)
    time.sleep(seconds)
    return _switches(engine.pid) - before


def _switches(pid: int) -> int:
    lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("voluntary", "nonvoluntary")))


def on_an_engine(port: int, token: str | None) -> dict[str, Any]:
    """What is measured of a decode engine, after one turn of about two thousand tokens on it."""
    router = Router(port, token)
    turn = {"model": "tiny", "prompt": words(HANDLE, 8000), "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    status, answer, _ = router.ask("/v1/completions", {**turn, "kv_transfer_params": {"neuron_pd_handle": HANDLE}})
    if status != 200:
        raise EngineError(f"a turn: HTTP {status}: {answer}")
    path = control_path(router)
    router.until_idle()
    engine = engine_process(port)
    time.sleep(1)
    idle = wakeups(engine, IDLE_SECONDS)
    _, lease, _ = Router(port, token).ask(ACQUIRE, {"handle": HANDLE})  # the server has closed the other by now
    leased = wakeups(engine, 1.0)
    blocks = len(lease["kv_transfer_params"]["remote_block_ids"][0])
    return {"blocks": blocks, "control_path_ms": path, "idle_wakeups": idle, "wakeups_in_1s_of_a_lease": leased}


async def with_an_engine(options: argparse.Namespace) -> dict[str, Any]:
    port = options.first_port
    topology = cpu_topology(
        model_dir("tiny"),
        served_name="tiny",
        max_model_len=8192,
        kv_cache_gib=1,
        prefill_port=port + 1,
        decode_port=port,
        decode_side_channel_port=port + 2,
        prefill_side_channel_port=port + 3,
        run_dir=options.run_dir,
    )
    with live(Console(stderr=True)) as progress:
        async with Supervisor(DecodeAlone(topology), progress) as running:
            return await asyncio.to_thread(on_an_engine, port, running.token)


def goals(found: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """What was measured of each goal, and the goal."""
    for size, milliseconds in found["fingerprint_ms"].items():
        yield f"fingerprint of 128k tokens, blocks of {size}: ms of CPU", milliseconds, GOALS["fingerprint_ms"]
    for kind, share in found["ledger_share"].items():
        yield f"ledger of {kind} over ledger_bytes", share, GOALS["ledger_share"]
    if engine := found.get("engine"):
        acquire = engine["control_path_ms"]["acquire"]["median"]
        yield f"acquire of {engine['blocks']} blocks on an idle engine: ms", acquire, GOALS["acquire_ms"]
        wakes = engine["idle_wakeups"]
        yield f"wake-ups of the engine's loop in {IDLE_SECONDS:g} s, nothing retained", wakes, GOALS["idle_wakeups"]


def show(found: Mapping[str, Any], console: Console) -> None:
    table = Table("", "measured", "goal", "")
    for what, measured, goal in goals(found):
        table.add_row(what, f"{measured:g}", f"≤ {goal:g}", "✓" if measured <= goal else "✗")
    console.print(table)
    for name, times in found.get("engine", {}).get("control_path_ms", {}).items():
        console.print(f"{name:8} median {times['median']:g} ms, p99 {times['p99']:g} ms", highlight=False)


def main(argv: list[str] | None = None) -> int:
    """Measure; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ci.costs", description="What verification and retention cost.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was found")
    parser.add_argument("--no-engine", action="store_true", help="leave out what needs vLLM")
    parser.add_argument("--run-dir", type=Path, default=Path("results/costs"), help="logs (default: %(default)s)")
    parser.add_argument("--first-port", type=int, default=18420, help="and the three above (default: %(default)s)")
    options = parser.parse_args(argv)
    found: dict[str, Any] = {"fingerprint_ms": fingerprint_ms()}
    found["ledger_share"] = {"short records": ledger_share(1), "long records": ledger_share(1000)}
    if not options.no_engine:
        try:
            found["engine"] = asyncio.run(with_an_engine(options))
        except NeuronPDError as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
        except KeyboardInterrupt:
            return INTERRUPTED
    show(found, Console(width=100))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(any(measured > goal for _, measured, goal in goals(found)))


if __name__ == "__main__":
    sys.exit(main())
