"""The proxy's log on stderr. There is a line for every turn, so what a line costs is kept low."""

import logging
import sys
import time

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Formatter(logging.Formatter):
    """Like logging's own, with the calendar asked once a second."""

    _second, _text = -1, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._text = second, time.strftime(self.default_time_format, time.localtime(second))
        return f"{self._text},{int(record.msecs):03d}"


def log_to_stderr(level: str) -> None:
    """Log from `level` on. No line names threads, processes or callers, so none is looked for (logging's HOWTO)."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
