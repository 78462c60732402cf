"""Topologies of stand-ins."""

import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from neuron_pd.launcher.topology import Child

STAND_IN = Path(__file__).with_name("stand_in.py")
MARK = "NEURON_PD_TEST_OWNER"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def left_of(owner: Path) -> list[psutil.Process]:
    """Live processes that were started, directly or not, with `owner` as their mark."""
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(owner) and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
        except psutil.Error:
            continue
    return left


def until_none_left(owner: Path) -> None:
    """Wait for the end of all; the test's own time limit is the bound."""
    while left_of(owner):
        time.sleep(0.05)


def until_there(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


@dataclass
class Plan:
    """A topology of stand-ins; `add` puts one into the last stage, `then` begins another stage."""

    run_dir: Path
    owner: Path
    built: list[list[Child]] = field(default_factory=lambda: [[]])

    def add(self, name: str, kind: str = "server", **behaviour: str) -> Child:
        port = free_port()
        child = Child(
            name=name,
            kind=kind,
            argv=[sys.executable, str(STAND_IN), "--port", str(port)],
            port=port,
            health_url=f"http://127.0.0.1:{port}/health",
            log=self.run_dir / f"{name}.log",
            environment={MARK: str(self.owner), **{f"STAND_IN_{key.upper()}": text for key, text in behaviour.items()}},
        )
        self.built[-1].append(child)
        return child

    def then(self) -> None:
        self.built.append([])

    def stages(self) -> list[list[Child]]:
        return self.built

    def urls(self) -> Mapping[str, str]:
        return {child.name: f"http://127.0.0.1:{child.port}" for stage in self.built for child in stage}

    def token(self) -> str | None:
        return None
