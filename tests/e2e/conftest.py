"""One real topology for all end-to-end tests: `neuron-pd up` with vLLM, NIXL and the tiny model, on its own ports.

The legs of ci/matrix.yaml say on which instance type (NEURON_PD_TEST_INSTANCE), with which retention
(NEURON_PD_TEST_RETENTION) and, on a runner that has one, with which model directory (NEURON_PD_TEST_MODEL).
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest

from tests.e2e.asking import TOKEN, control, settled

PORTS = {
    "--proxy-port": 18000,
    "--prefill-port": 18100,
    "--decode-port": 18200,
    "--prefill-side-channel-port": 15600,
    "--decode-side-channel-port": 15601,
}
CLI = [sys.executable, "-m", "neuron_pd"]
LENGTH = 4096


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The common topology starts last: what starts engines of its own has the machine and the ports to itself."""
    items.sort(key=lambda item: bool(item.get_closest_marker("e2e")) and "cluster" in getattr(item, "fixturenames", ()))


def port_flags() -> list[str]:
    return [text for name, port in PORTS.items() for text in (name, str(port))]


def descendants(pid: int) -> set[psutil.Process]:
    return set(psutil.Process(pid).children(recursive=True))


@dataclass
class Cluster:
    """A running topology, seen as a client and as a router see it."""

    process: "subprocess.Popen[str]"
    logs: Path
    proxy: str = f"http://127.0.0.1:{PORTS['--proxy-port']}"
    prefill: str = f"http://127.0.0.1:{PORTS['--prefill-port']}"
    decode: str = f"http://127.0.0.1:{PORTS['--decode-port']}"
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=300))

    def control(self, engine: str, verb: str, body: dict[str, Any] | None = None) -> httpx.Response:
        return control(self.http, engine, verb, body)

    def stats(self, engine: str | None = None) -> dict[str, float]:
        stats: dict[str, float] = self.control(engine or self.decode, "stats").json()
        return stats

    def settled(self) -> dict[str, float]:
        """D's gauges once nothing is in flight."""
        return settled(self.stats)

    def chat(self, messages: list[dict[str, str]], **fields: Any) -> "Answer":
        headers = fields.pop("headers", {})
        body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 24, "ignore_eos": True, **fields}
        response = self.http.post(f"{self.proxy}/v1/chat/completions", json=body, headers=headers)
        return Answer(response)

    def cold(self, messages: list[dict[str, str]], **fields: Any) -> str:
        """The answer without reuse, and without any cache."""
        answer = self.chat(messages, cache_salt=uuid4().hex, headers={"X-Neuron-PD-Reuse": "off"}, **fields)
        assert answer.turn["reused"] == "0"
        return answer.text

    def tokens(self, messages: list[dict[str, str]], generate: bool = True) -> list[int]:
        """The prompt as the engines tokenise it."""
        body = {"model": "tiny", "messages": messages, "add_generation_prompt": generate}
        found: list[int] = self.http.post(f"{self.prefill}/tokenize", json=body).json()["tokens"]
        return found


@dataclass
class Answer:
    response: httpx.Response

    @property
    def text(self) -> str:
        assert self.response.status_code == 200, self.response.text
        text: str = self.response.json()["choices"][0]["message"]["content"]
        return text

    @property
    def turn(self) -> dict[str, str]:
        """How the prefill engine served it: the proxy's header, as a mapping."""
        assert self.response.status_code == 200, self.response.text
        pairs = (part.strip().split("=", 1) for part in self.response.headers["x-neuron-pd-turn"].split(";"))
        return dict(pairs)

    @property
    def reused(self) -> int:
        return int(self.turn["reused"])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    run_dir = tmp_path_factory.mktemp("up")
    instance, model, retention = (
        os.environ.get(f"NEURON_PD_TEST_{name}", default)
        for name, default in (("INSTANCE", "cpu"), ("MODEL", "tiny"), ("RETENTION", "lease"))
    )
    # The prefill engine keeps no prefix cache, so every token that it did not compute came from the decode engine.
    command = [*CLI, "up", "--run-dir", str(run_dir), "--no-prefill-prefix-caching", "--max-model-len", str(LENGTH)]
    command += ["--served-model-name", "tiny", *(["--kv-cache-gib", "1"] if instance == "cpu" else [])]
    engine = ["--kv-transfer-config", json.dumps({"kv_connector_extra_config": {"retention": retention}})]
    # The tiny model has a slice of one accelerator for each engine.
    engine += [] if instance == "cpu" or model != "tiny" else ["--tensor-parallel-size", "1"]
    process = subprocess.Popen(
        [*command, "--instance", instance, "--model", model, *port_flags(), "--", *engine],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NEURON_PD_CONTROL_TOKEN": TOKEN},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if not process.stdout.readline().startswith("http"):
        pytest.fail(f"`neuron-pd up` did not start: {process.stderr.read()}")
    yield Cluster(process, run_dir)
    family = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert not [child for child in family if child.is_running()], "a process outlived `neuron-pd up`"
