"""Lines of vLLM's, the proxy's and the journal's logs as records: when, from whom, how serious, what."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

# (EngineCore pid=9237) INFO 11-30 10:59:38 [reuse.py:266] neuron-pd: turn request=…
VLLM: Final = re.compile(
    r"(?:\([^()]*pid=\d+\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) "
    r"\[[^\]]*\] ?(?P<text>.*)"
)
# 2026-11-30 10:59:38,641 INFO neuron_pd.proxy: Prefill done in 115ms …
PYTHON: Final = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,\d+)? (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+: (?P<text>.*)"
)
# INFO:     127.0.0.1:60122 - "POST /v1/completions HTTP/1.1" 200 OK
UVICORN: Final = re.compile(r"(?:\([^()]*pid=\d+\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): +(?P<text>.*)")
# 2026-11-30T10:59:38+0000 node-1 neuron-pd-decode[4711]: …
JOURNAL: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S* \S+ (?P<unit>[^\s\[]+)(?:\[\d+\])?: (?P<line>.*)")
PROCESS: Final = re.compile(r"^\([^()]*pid=\d+\) ")
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # clients choose ids, and a terminal obeys these
A_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Record:
    """One message, with the lines that follow it (a traceback).

    `time` is local: that of the record before where it has none of its own, None before the first that has.
    """

    source: str
    time: datetime | None
    level: str
    text: str

    def __str__(self) -> str:
        when = f"{self.time:%Y-%m-%d %H:%M:%S}" if self.time else " " * 19
        return f"{when} {self.source:<8} {self.level:<7} {CONTROL.sub('', self.text)}"


def records(lines: Iterable[str | None], source: str, now: datetime) -> Iterator[Record | None]:
    """The records of one log, in its order. `now` settles the year, which vLLM does not write.

    A None among the lines (nothing new at the moment) ends the record that is under way, and is passed on.
    """
    current: Record | None = None
    time: datetime | None = None
    for raw in lines:
        if raw is None:
            if current is not None:
                yield current
                current = None
            yield None
            continue
        line, who = _unwrapped(raw.rstrip("\n"), source)
        begun = _begun(line, who, now)
        if begun is not None:
            if current is not None:
                yield current
            time = begun.time or time
            current = replace(begun, time=time)
        elif current is None:
            current = Record(who, time, "", line)
        else:
            more = PROCESS.sub("", line)
            current = Record(current.source, current.time, current.level, f"{current.text}\n{more}")
    if current is not None:
        yield current


def _unwrapped(line: str, source: str) -> tuple[str, str]:
    """A line without the journal's own beginning, and whose it is."""
    found = JOURNAL.match(line)
    return (found["line"], found["unit"].removeprefix("neuron-pd-")) if found else (line, source)


def _begun(line: str, source: str, now: datetime) -> Record | None:
    """The record that a line begins; None for one that continues another."""
    if found := VLLM.match(line):
        return Record(source, _with_year(found["time"], now), found["level"], found["text"])
    if found := PYTHON.match(line):
        return Record(source, datetime.strptime(found["time"], "%Y-%m-%d %H:%M:%S"), found["level"], found["text"])
    if found := UVICORN.match(line):
        return Record(source, None, found["level"], found["text"])
    return None


def _with_year(text: str, now: datetime) -> datetime | None:
    """This year's, or the last one's where that would be in the future."""
    for year in (now.year, now.year - 1):
        try:
            time = datetime.strptime(f"{year}-{text}", "%Y-%m-%d %H:%M:%S")
        except ValueError:  # the 29th of February
            continue
        if time <= now + A_DAY:
            return time
    return None
