"""The proxy's log lines are logging's own, made with less work."""

import io
import logging

import pytest

from neuron_pd.cli.proxy.log import FORMAT, Formatter


@pytest.mark.parametrize("times", [[1_790_000_000.0, 1_790_000_000.0414, 1_790_000_000.9996], [5.5, 4.25, 1e9, 5.5]])
def test_lines_are_those_of_logging(times: list[float]) -> None:
    ours, theirs = Formatter(FORMAT), logging.Formatter(FORMAT)
    for moment in times:
        record = logging.LogRecord("neuron_pd.proxy", logging.INFO, "", 0, "%s turn", ("a",), None)
        record.created, record.msecs = moment, moment % 1 * 1000
        assert ours.format(record) == theirs.format(record)


def test_a_traceback_follows_its_line() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter(FORMAT))
    log = logging.Logger("neuron_pd.proxy")
    log.addHandler(handler)
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("a request failed")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("ERROR neuron_pd.proxy: a request failed")
    assert rest[0].startswith("Traceback")
