"""An article-style run, read from the files that it leaves: statistics JSON, the proxy's log, the prefill node's log.

Statistics are those of vLLM's multi-turn benchmark, a file a prompt length. The proxy's log has `Prefill done in <N>ms`
for each turn, in order. The prefill node's log has vLLM's `KV Transfer metrics:` lines (`Num successful transfers=`,
`Avg xfer time (ms)=`, `Avg MB per transfer=`, in MiB), each over the reads since the one before; the decode node logs
its ordinary pulls in the same way, so its log is of no use here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from neuron_pd.bench.records import ON, Record, Transfers
from neuron_pd.bench.vllm_statistics import read_statistics
from neuron_pd.errors import UsageError

PREFILL_DONE = re.compile(r"Prefill done in (\d+(?:\.\d+)?) ?ms")
TRANSFER_LINE = "KV Transfer metrics: "
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of one leg. Logs may be missing; several of one kind are read one after another."""

    statistics: Sequence[Path]
    proxy_logs: Sequence[Path] = ()
    prefill_logs: Sequence[Path] = ()


@dataclass(slots=True)
class ArticleRun:
    """What the files say, as records, and what they do not say, one sentence each."""

    records: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_article(legs: Mapping[str, Sources]) -> ArticleRun:
    """Both legs as records. UsageError for a file that cannot be read or holds something else."""
    run = ArticleRun()
    files = {leg: sorted(_lengths(sources.statistics), key=lambda pair: pair[0]) for leg, sources in legs.items()}
    same = len({len(found) for found in files.values()}) == 1
    names = [length for length, _ in next(iter(files.values()))] if same and files else []
    for leg, sources in legs.items():
        requests: list[Record] = []
        for position, (length, entries) in enumerate(files[leg]):
            # The two legs of a length differ by a few tokens of their replies: they bear one name.
            requests += _requests(entries, leg, names[position] if same else length)
        requests.sort(key=lambda record: record.started)
        requests = _with_prefill(requests, leg, sources.proxy_logs, run.notes)
        run.records += _with_transfers(requests, leg, sources.prefill_logs, run.notes)
    return run


def _lengths(paths: Iterable[Path]) -> Iterable[tuple[int, Sequence[dict[str, Any]]]]:
    """Each file's first prompts, median, in tokens, and its requests."""
    for path in paths:
        entries = read_statistics(path)
        first = [entry["input_num_tokens"] for entry in entries if entry.get("input_num_turns", 1) == 1]
        if not entries:
            raise UsageError(f"{path} holds no request")
        yield round(median(first or [entry["input_num_tokens"] for entry in entries])), entries


def _requests(entries: Sequence[Mapping[str, Any]], leg: str, length: int) -> list[Record]:
    conversations = list(dict.fromkeys(str(entry["conversation_id"]) for entry in entries))
    return [
        Record(
            leg=leg,
            length=length,
            repeat=0,
            index=conversations.index(str(entry["conversation_id"])),
            turn=(int(entry.get("input_num_turns", 1)) + 1) // 2,
            conversation=str(entry["conversation_id"]),
            history="",
            started_at=0.0,
            started=(started := entry["start_time_ms"] / 1000),
            first_token=started + entry["ttft_ms"] / 1000,
            first_content=started + entry["ttft_ms"] / 1000,
            ended=started + entry.get("latency_ms", entry["ttft_ms"]) / 1000,
            prompt_tokens=int(entry["input_num_tokens"]),
            reply_tokens=entry.get("output_num_tokens"),
            status=200,
        )
        for entry in entries
    ]


def _with_prefill(requests: list[Record], leg: str, logs: Sequence[Path], notes: list[str]) -> list[Record]:
    """The n-th prefill belongs to the n-th request; where there are more, the first ones were a warm-up."""
    durations = [float(found[1]) for line in _lines(logs) if (found := PREFILL_DONE.search(line))]
    if not logs:
        return requests
    if len(durations) < len(requests):
        notes.append(
            f"{leg.upper()}: the proxy's log has {len(durations)} prefills for {len(requests)} requests: left out."
        )
        return requests
    if len(durations) > len(requests):
        notes.append(f"{leg.upper()}: of {len(durations)} prefills in the proxy's log the last {len(requests)} count.")
    pairs = zip(requests, durations[-len(requests) :], strict=True)
    return [replace(record, server_timing={"prefill": duration}) for record, duration in pairs]


def _with_transfers(requests: list[Record], leg: str, logs: Sequence[Path], notes: list[str]) -> list[Record]:
    """Spread the lines over the turns that read, the second and later ones, in order; ranks read side by side."""
    lines = [parsed for line in _lines(logs) if (parsed := parse_transfer_line(line)) and parsed.count]
    readers = [number for number, record in enumerate(requests) if record.turn > 1]
    if not lines or not readers:
        if logs and leg == ON:
            notes.append(f"{leg.upper()}: the prefill node's log has no `{TRANSFER_LINE.strip()}` line with a read.")
        return requests
    total = sum(line.count for line in lines)
    ranks = max(1, round(total / len(readers)))
    if total != ranks * len(readers):
        notes.append(f"{leg.upper()}: {total:.0f} transfers for {len(readers)} turns: spread over them in order.")
    made, passed, line = list(requests), 0.0, 0
    for position, number in enumerate(readers):
        while line + 1 < len(lines) and position / len(readers) >= (passed + lines[line].count) / total:
            passed, line = passed + lines[line].count, line + 1
        one = lines[line]
        read = Transfers(ranks, ranks * one.seconds / one.count, ranks * one.bytes / one.count)
        made[number] = replace(requests[number], read_back=read)
    return made


def parse_transfer_line(line: str) -> Transfers | None:
    """One `KV Transfer metrics:` line as totals of its interval; None for any other line."""
    _, found, said = line.partition(TRANSFER_LINE)
    pairs = dict(part.split("=", 1) for part in said.strip().split(", ") if "=" in part)
    try:
        count = float(pairs["Num successful transfers"])
        seconds = count * float(pairs["Avg xfer time (ms)"]) / 1000
        return Transfers(count, seconds, count * float(pairs["Avg MB per transfer"]) * MIB) if found else None
    except (KeyError, ValueError):
        return None


def _lines(paths: Iterable[Path]) -> Iterable[str]:
    for path in paths:
        try:
            with path.open(encoding="utf-8", errors="replace") as log:
                yield from log
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
