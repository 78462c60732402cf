"""docs/tutorial.md in its own commands, and those of docs/operations.md on the cluster that it ends with.

Both nodes are this machine, and ports are the tests' own, so that nothing of a person's is in the way.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import program
from tests.docs.pages import FENCE, ROOT
from tests.e2e.conftest import PORTS, Cluster

pytestmark = pytest.mark.e2e

OURS = {"8000": PORTS["--proxy-port"], "8100": PORTS["--prefill-port"], "8200": PORTS["--decode-port"]}
HERE = {f"10.0.0.{node}": "127.0.0.1" for node in (1, 2, 4)}
SERVES = ("--exec", "neuron-pd proxy", "neuron-pd up")  # what goes on until it is told to stop
FIRST, SECOND = "turn-1.json", "turn-2.json"


class Reader:
    """A person who types what a page says, in a directory with the checkout's docs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        program(home)
        (home / "docs").symlink_to(ROOT / "docs")
        path = f"{home}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(home / "state")}
        self.environment |= {"NEURON_PD_PROXY_PORT": str(OURS["8000"])}
        self.serving: list[subprocess.Popen[bytes]] = []

    def types(self, block: str) -> str:
        """What a block prints; one that serves is left running, and prints into a log."""
        for there, here in (HERE | OURS).items():
            block = re.sub(rf"\b{re.escape(there)}\b", str(here), block)
        if any(words in block for words in SERVES):
            self._starts(block)
            return ""
        done = self._run(block)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _run(self, block: str) -> "subprocess.CompletedProcess[str]":
        command = ["bash", "-euo", "pipefail", "-c", block]
        return subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, check=False, timeout=400
        )

    def _starts(self, block: str) -> None:
        role = re.search(r"--role (\w+)", block)
        ports = {"prefill": (OURS["8100"], 15600), "decode": (OURS["8200"], 15601)}.get(role[1]) if role else None
        told = {}
        if ports:
            told = {"NEURON_PD_LAUNCH_PORT": str(ports[0]), "NEURON_PD_LAUNCH_SIDE_CHANNEL_PORT": str(ports[1])}
        log = (self.home / f"{role[1] if role else 'proxy'}.log").open("w")
        command = ["bash", "-euo", "pipefail", "-c", block]
        with log:
            self.serving.append(
                subprocess.Popen(
                    command,
                    cwd=self.home,
                    env={**self.environment, **told},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def ends(self) -> None:
        """Whatever is still running."""
        for process in self.serving:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    someone = Reader(tmp_path)
    yield someone
    someone.ends()


def section(page: str, heading: str) -> list[str]:
    """The blocks of shell below a heading of docs/, to the next of its level."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")[2]
    text = re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]
    return [found["text"] for found in FENCE.finditer(text) if found["language"] == "sh"]


def streamed(answer: str) -> bool:
    """Whether an answer came in pieces, to its end."""
    pieces = [line for line in answer.splitlines() if line.startswith("data: {")]
    return len(pieces) > 2 and "data: [DONE]" in answer.splitlines()


def test_two_nodes(reader: Reader) -> None:
    token, prefill, decode, proxy, ready, ask, doctor, stop = section("tutorial.md", "3. Two nodes")
    for block in (token, prefill, decode, proxy):
        reader.types(block)
    # The proxy's block first waits for the engines.
    assert '"ready":true' in until_ready(reader, ready).replace(" ", "")
    first, second = reader.types(ask).split("HTTP/1.1 200", 1)
    assert streamed(first)
    assert streamed(second)
    assert "path=read_back; reason=verified" in second
    assert "reuse: works" in reader.types(doctor)
    for block in section("operations.md", "Is it well?"):
        assert '"open_leases"' in reader.types(block)
    for block in section("operations.md", "Draining and stopping"):
        assert "drain" in reader.types(block)
    stopped = reader.types(stop)
    assert {line.split()[1] for line in stopped.splitlines()} == {"prefill", "decode", "proxy"}


def until_ready(reader: Reader, block: str) -> str:
    """The answer of /ready once the proxy's block has waited for the engines."""
    for _ in range(60):
        done = reader._run(block.replace("8000", str(OURS["8000"])))
        if done.returncode == 0:
            return done.stdout
    raise AssertionError("\n".join(path.read_text()[-2000:] for path in reader.home.glob("*.log")))


def test_serve_and_ask(cluster: Cluster, reader: Reader) -> None:
    """`neuron-pd up` is the common cluster's."""
    serve, first, second = section("tutorial.md", "2. Serve, and ask")
    assert "neuron-pd up --no-prefill-prefix-caching" in serve
    assert streamed(reader.types(first))
    answer = reader.types(second)
    assert streamed(answer)
    assert re.search(r"(?i)x-neuron-pd-turn: path=read_back; reason=verified", answer)
