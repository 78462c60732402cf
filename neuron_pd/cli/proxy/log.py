"""The proxy's log on stderr. There is a line for every turn, so a line costs no more than what stands in it."""

import asyncio
import contextlib
import logging
import sys
import time
from typing import Any, TextIO

BATCH_SECONDS = 0.05
BATCH_CHARACTERS = 16 * 1024


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


class Lines(logging.StreamHandler[TextIO]):
    """To a stream, what an event loop logs in batches: a write for every line would cost more than the line.

    A warning, `BATCH_CHARACTERS` and the end of the process write what waits at once, time `BATCH_SECONDS` after the
    first line; what is logged outside an event loop does not wait.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(Formatter())
        self._waiting: list[str] = []
        self._characters = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        self._waiting.append(line)
        self._characters += len(line)
        if record.levelno >= logging.WARNING or self._characters > BATCH_CHARACTERS or not self._in_time():
            self.flush()

    def _in_time(self) -> bool:
        """Whether what waits will be written: the first line of a batch sees to it."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if len(self._waiting) == 1:
            loop.call_later(BATCH_SECONDS, self.flush)
        return True

    def flush(self) -> None:
        """Write what waits."""
        with self.lock:  # type: ignore[union-attr] # every handler makes one
            if self._waiting:
                text = "\n".join([*self._waiting, ""])
                self._waiting, self._characters = [], 0
                with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                    self.stream.write(text)
                    self.stream.flush()


def log_to_stderr(level: str) -> None:
    """Log from `level` on."""
    logging.setLogRecordFactory(Record)
    logging._srcfile = None  # nobody looks for the caller (logging's HOWTO)
    logging.basicConfig(level=level.upper(), handlers=[Lines(sys.stderr)])
