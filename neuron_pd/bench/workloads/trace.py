"""Mooncake-style request traces: JSON lines of `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

A hash id stands for `BLOCK` tokens of a prompt and everything before them; requests that begin with the same ids begin
with the same text. The text itself is not in a trace: here each id has words of its own. A request continues the
conversation of the latest earlier one whose full blocks it begins with. The recorded replies are part of the later ids,
so the server's own answers are not put into the history.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neuron_pd.bench.text import Ruler
from neuron_pd.bench.workloads.dialogue import Dialogue, Sizes, Turn
from neuron_pd.errors import UsageError

BLOCK = 512
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


class Request(NamedTuple):
    """One line of a trace; `at` in seconds."""

    at: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]

    @property
    def full_blocks(self) -> tuple[int, ...]:
        return self.hash_ids[: self.input_length // BLOCK]


class Trace:
    """The requests of one file as conversations. A second of the trace lasts `time_scale` of one."""

    sized, timed = False, True

    def __init__(self, lines: Iterable[Any], path: Path, time_scale: float = 1.0) -> None:
        """UsageError for a line that is not a request."""
        requests = [_request(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
        self._threads = _threads(sorted(requests, key=lambda request: request.at))
        self._begin = min(request.at for request in requests)
        self._time_scale = time_scale

    async def dialogues(self, ruler: Ruler, key: str, sizes: Sizes, count: int | None) -> list[Dialogue]:
        blocks: dict[int, str] = {}
        return [
            Dialogue(tuple([await self._turn(ruler, key, request, blocks) for request in thread]))
            for thread in self._threads[:count]
        ]

    async def _turn(self, ruler: Ruler, key: str, request: Request, blocks: dict[int, str]) -> Turn:
        parts, left = [], request.input_length - ruler.overhead
        for block in request.hash_ids:
            if left <= 0:
                break
            if left < BLOCK:
                parts.append(await ruler.text(f"{key}/{block}", left))
            else:
                if block not in blocks:
                    blocks[block] = await ruler.text(f"{key}/{block}", BLOCK)
                parts.append(blocks[block])
            left -= BLOCK
        message = {"role": "user", "content": " ".join(parts) or "?"}
        due = (request.at - self._begin) * self._time_scale
        return Turn((message,), max(1, request.output_length), after=0, due=due)


def _threads(requests: Sequence[Request]) -> list[list[Request]]:
    threads: list[list[Request]] = []
    latest: dict[tuple[int, ...], int] = {}  # the full blocks of a thread's last request → the thread
    for request in requests:
        ids = request.hash_ids
        starts = (ids[:size] for size in range(len(ids), 0, -1))
        thread = next((latest[start] for start in starts if start in latest), None)
        if thread is None:
            thread = len(threads)
            threads.append([])
        threads[thread].append(request)
        if request.full_blocks:
            latest[request.full_blocks] = thread
    return threads


def _request(line: Any, where: str) -> Request:
    if not isinstance(line, Mapping) or any(name not in line for name in FIELDS):
        raise UsageError(f"{where} is no request: it needs {', '.join(FIELDS)}")
    at, length, output, ids = (line[name] for name in FIELDS)
    numbers = all(isinstance(number, int | float) and number >= 0 for number in (at, length, output))
    if not numbers or not isinstance(ids, list) or not all(isinstance(one, int) for one in ids) or length < 1:
        raise UsageError(f"{where} holds a number that cannot be used")
    return Request(at / 1000, int(length), int(output), tuple(ids))
