"""Records of several logs in the order of their times; with `follow` as they come."""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from neuron_pd.doctor.logs.records import Record, records
from neuron_pd.doctor.logs.sources import Source, pause

Wanted = Callable[[Record], bool]


def read(sources: Sequence[Source], wanted: Wanted, now: datetime, last: int | None = None) -> list[Record]:
    """The wanted records of all sources, in order of time; the `last` so many."""
    merged = heapq.merge(*(_timed(source, now) for source in sources), key=lambda pair: pair[0])
    found = (record for _, record in merged if wanted(record))
    return list(deque(found, maxlen=last))


def follow(sources: Sequence[Source], wanted: Wanted, now: datetime, last: int) -> Iterator[Record]:
    """The `last` so many wanted records of all sources that there are, then each as it is written, for ever."""
    logs = [records(source.lines(follow=True), source.name, now) for source in sources]
    there = [record for log in logs for record in _until_idle(log) if wanted(record)]
    yield from sorted(there, key=lambda record: record.time or datetime.min)[-last:]
    while True:
        pause()
        fresh = [record for log in logs for record in _until_idle(log) if wanted(record)]
        yield from sorted(fresh, key=lambda record: record.time or datetime.min)


def _until_idle(log: Iterator[Record | None]) -> Iterator[Record]:
    while (record := next(log, None)) is not None:
        yield record


def _timed(source: Source, now: datetime) -> Iterator[tuple[datetime, Record]]:
    """Records with the time that they are put in order by: their own, or that of the record before."""
    at = datetime.min
    for record in records(source.lines(follow=False), source.name, now):
        if record is not None:
            at = max(at, record.time or at)
            yield at, record
