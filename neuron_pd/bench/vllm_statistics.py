"""The per-request statistics of vLLM's multi-turn benchmark (`--stats-json-output`): written for other tools, and read.

An array of objects. Times are in milliseconds, `start_time_ms` of the client's monotonic clock. As there, TTFT is that
of content; where several tokens came in the first event it is reduced by the time of the others. `input_num_turns`
counts messages, `output_num_chunks` the events after the first that held text.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from neuron_pd.bench.records import Record
from neuron_pd.errors import UsageError

FIELDS = (
    "ttft_ms",
    "tpot_ms",
    "latency_ms",
    "start_time_ms",
    "input_num_turns",
    "input_num_tokens",
    "output_num_tokens",
    "output_num_chunks",
    "output_num_first_chunk_tokens",
    "approx_cached_percent",
    "conversation_id",
    "client_id",
)


def write_statistics(records: Iterable[Record], path: Path) -> None:
    """Write the answered requests of `records`. UsageError when the file cannot be written."""
    body = [statistics(record) for record in records if record.ok and record.content_ms is not None]
    try:
        path.write_text(json.dumps(body, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def statistics(record: Record) -> dict[str, Any]:
    """One answered request. The share that was cached is what the servers reused, not an estimate from the history."""
    ttft, latency = record.content_ms or 0.0, 1000 * (record.ended - record.started)
    tokens, prompt = record.reply_tokens or 0, record.prompt_tokens or 0
    in_first = max(1, round(tokens / record.pieces)) if record.pieces else 0
    tpot = (latency - ttft) / (tokens - in_first) if tokens > in_first else 0.0
    report = record.report
    reused = (report.reused + report.local) if report else (record.cached_tokens or 0)
    return {
        "ttft_ms": max(0.1, ttft - (in_first - 1) * tpot) if in_first > 1 else ttft,
        "tpot_ms": tpot,
        "latency_ms": latency,
        "start_time_ms": 1000 * record.started,
        "input_num_turns": 2 * record.turn - 1,
        "input_num_tokens": prompt,
        "output_num_tokens": tokens,
        "output_num_chunks": max(0, record.pieces - 1),
        "output_num_first_chunk_tokens": in_first,
        "approx_cached_percent": 100 * reused / prompt if prompt else 0.0,
        "conversation_id": record.conversation,
        "client_id": 0,
    }


def read_statistics(path: Path) -> Sequence[dict[str, Any]]:
    """The requests of a statistics file, in the order in which they were sent. UsageError when it is not one."""
    try:
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        body = None
    needed = ("ttft_ms", "start_time_ms", "input_num_tokens", "conversation_id")
    if not isinstance(body, list) or not all(isinstance(one, dict) and all(n in one for n in needed) for one in body):
        raise UsageError(f"{path} holds no statistics of vLLM's multi-turn benchmark (--stats-json-output)")
    return sorted(body, key=lambda one: float(one["start_time_ms"]))
