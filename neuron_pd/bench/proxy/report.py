"""The rows as a table for people."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table


def table(report: Mapping[str, Any]) -> Table:
    """One line a contender; how many times a peer's requests per second ours are stands in its line."""
    made = Table(title=f"two legs, {report['plan']['chunks']} chunks a reply, one core a proxy")
    for heading in ("", "requests/s", "least – most", "ours is", "CPU µs/request", "µs/chunk", "core", "others"):
        made.add_column(heading, justify="right" if heading else "left", no_wrap=not heading)
    made.add_column(f"first byte of {report['plan']['burst']} at once, ms", justify="right")
    for row in report["rows"]:
        made.add_row(*_cells(row, report["times"].get(row["name"])))
    return made


def _cells(row: Mapping[str, Any], times: Mapping[str, float] | None) -> list[str]:
    if row["requests_per_s"] is None:
        return [row["name"], "–", *[""] * 7]
    first = row.get("first_byte_ms")
    return [
        row["name"],
        f"{row['requests_per_s']:,.0f}",
        f"{row['spread'][0]:,.0f} – {row['spread'][1]:,.0f}",
        f"{times['median']:.1f}×" if times else "",
        f"{row['cpu_us_per_request']:,.0f}",
        f"{row['cpu_us_per_chunk']:.1f}" if "cpu_us_per_chunk" in row else "",
        f"{row['core_busy']:.0%}",
        f"{row['others_busy']:.0%}",
        f"{first['median']:.1f}, p99 {first['p99']:.1f}" if first else "",
    ]


def memory_line(memory: Mapping[str, Any] | None) -> list[str]:
    """One line on memory, where it was measured."""
    if memory is None:
        return []
    return [
        f"memory: {memory['conversations']:,} conversations take {memory['bytes_by_id']:,} bytes each when named by an "
        f"id, {memory['bytes_by_transcript']:,} a turn when recognised by their transcript"
    ]
