"""The proxy's log on stderr. There is a line for every turn, so a line costs no more than what stands in it."""

import logging
import sys
import time
from typing import Any


class Record(logging.LogRecord):
    """What a line shows, and nothing of the code, the thread and the process that it comes from."""

    pathname = filename = module = funcName = threadName = processName = ""
    lineno = thread = process = 0
    exc_text = stack_info = None

    def __init__(self, name: str, level: int, path: str, at: int, msg: Any, args: Any, exc_info: Any, *_: Any) -> None:
        self.name, self.levelno, self.levelname = name, level, logging.getLevelName(level)
        self.msg, self.args, self.exc_info = msg, args, exc_info
        self.created = time.time()


class Formatter(logging.Formatter):
    """`2026-01-01 00:00:00,000 INFO neuron_pd.proxy: ...`, and the traceback, if there is one."""

    _second, _text = 0, ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        thousandths = int((record.created - second) * 1000)
        line = f"{self._text},{thousandths:03d} {record.levelname} {record.name}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class Lines(logging.StreamHandler[Any]):
    """To stderr, which Python flushes after every line."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(Formatter())

    def flush(self) -> None:
        """Nothing waits."""


def log_to_stderr(level: str) -> None:
    """Log from `level` on."""
    logging.setLogRecordFactory(Record)
    logging._srcfile = None  # nobody looks for the caller (logging's HOWTO)
    logging.basicConfig(level=level.upper(), handlers=[Lines()])
