"""The proxy's log lines are those that logging would write, made and written with less work."""

import asyncio
import io
import logging
import subprocess
import sys

import pytest

from neuron_pd.cli.proxy.log import BATCH_CHARACTERS, BATCH_SECONDS, Formatter, Lines, Record

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@pytest.mark.parametrize("times", [[1_790_000_000.0, 1_790_000_000.0625, 1_790_000_000.9375], [5.5, 4.25, 1e9, 5.5]])
def test_lines_are_those_of_logging(times: list[float]) -> None:
    ours, theirs = Formatter(), logging.Formatter(FORMAT)
    said = ("neuron_pd.proxy", logging.WARNING, "file.py", 7, "the turn of %s took %d ms", ("a", 12), None)
    for moment in times:
        record, whole = Record(*said), logging.LogRecord(*said)
        record.created = whole.created = moment
        whole.msecs = moment % 1 * 1000
        assert ours.format(record) == theirs.format(whole)


def test_a_traceback_follows_its_line() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter())
    log = logging.Logger("neuron_pd.proxy")
    log.addHandler(handler)
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("a request failed")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith(" ERROR neuron_pd.proxy: a request failed")
    assert (rest[0], rest[-1]) == ("Traceback (most recent call last):", "ValueError: no")


class Pipe(io.StringIO):
    """What was written, one piece a write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


@pytest.fixture
def stderr() -> Pipe:
    return Pipe()


@pytest.fixture
def log(stderr: Pipe) -> logging.Logger:
    logger = logging.Logger("neuron_pd.proxy")
    logger.addHandler(Lines(stderr))
    return logger


def test_without_an_event_loop_nothing_waits(log: logging.Logger, stderr: Pipe) -> None:
    log.info("one")
    assert stderr.getvalue().endswith(" INFO neuron_pd.proxy: one\n")


async def test_an_event_loop_writes_batches_in_time(log: logging.Logger, stderr: Pipe) -> None:
    for _ in range(2):
        log.info("one")
        log.info("two")
        assert not stderr.writes
        await asyncio.sleep(2 * BATCH_SECONDS)
        assert [line[-3:] for line in stderr.writes.pop().splitlines()] == ["one", "two"]


async def test_a_warning_writes_what_waits(log: logging.Logger, stderr: Pipe) -> None:
    log.info("one")
    log.warning("two")
    assert [line[-3:] for line in stderr.writes.pop().splitlines()] == ["one", "two"]


async def test_a_batch_has_a_size(log: logging.Logger, stderr: Pipe) -> None:
    for _ in range(17):
        log.info("x" * 1024)
    assert len(stderr.writes[0]) > BATCH_CHARACTERS


@pytest.mark.parametrize("end", ["pass", "raise ValueError", "sys.exit(3)"])
def test_nothing_is_lost_at_the_end(end: str) -> None:
    program = f"""
import asyncio, logging, sys
from neuron_pd.cli.proxy.log import log_to_stderr
async def main():
    logging.getLogger("neuron_pd.proxy").info("the last turn")
    {end}
log_to_stderr("info")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stderr.count("the last turn") == 1
