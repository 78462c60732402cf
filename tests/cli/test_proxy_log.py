"""The proxy's log lines are those that logging would write, made with less work."""

import io
import logging

import pytest

from neuron_pd.cli.proxy.log import Formatter, Record

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
