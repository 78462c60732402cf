"""The access log: one JSON object a request and line, without prompts, keys, ids or query strings.

    {"time": "2026-01-01T00:00:00.000Z", "method": "POST", "path": "/v1/chat/completions", "status": 200,
     "ms": 812.4, "bytes_in": 5210, "turn": {"path": "read_back", "reason": "verified", "prompt": 4410, ...}}

`turn` is there for generated turns: how they were served.
"""

import json
import logging
import sys
import time
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from neuron_pd.errors import UsageError
from neuron_pd.proxy.http import Request

STDOUT = "-"
MAX_PATH = 200


class AccessLog:
    """Writes to a file (made anew when it was moved away), or to standard output for "-"."""

    def __init__(self, place: str) -> None:
        """UsageError when the file cannot be written."""
        try:
            self._handler: logging.StreamHandler[Any] = (
                logging.StreamHandler(sys.stdout)
                if place == STDOUT
                else WatchedFileHandler(Path(place).absolute(), encoding="utf-8")
            )
        except OSError as error:
            raise UsageError(f"cannot write the access log to {place}: {error.strerror}") from error

    def request(self, request: Request, status: int, began: float) -> None:
        """A request that began at `began` (perf_counter) is over."""
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "method": request.method.decode("latin-1"),
            "path": request.path[:MAX_PATH],
            "status": status,
            "ms": round((time.perf_counter() - began) * 1000, 1),
            "bytes_in": len(request.body),
        }
        if request.turn is not None:
            line["turn"] = request.turn()
        text = json.dumps(line)
        self._handler.handle(logging.LogRecord("neuron_pd.access", logging.INFO, "", 0, text, None, None))

    def close(self) -> None:
        if isinstance(self._handler, WatchedFileHandler):
            self._handler.close()
