"""A real Redis (or Valkey) server on a loopback port of its own, in memory only, started without root."""

import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from ci.redis_server import server_binary


class RedisServer:
    """`with RedisServer() as redis:`; `stop` and `start` keep the port."""

    def __init__(self, directory: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._command = [
            server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory),
            *options,
        ]  # fmt: skip

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Leave clients without an answer: connections stay, and new ones are accepted by the system."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
