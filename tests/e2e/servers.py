"""Single engines for what the common cluster does not have: other settings, other models, ends and restarts."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import httpx

from neuron_pd.core.transfer import TURN, first_leg, second_leg
from neuron_pd.hosts.packages import vllm_version
from neuron_pd.launcher.serve import serve_spec
from neuron_pd.models import model_dir
from tests.e2e.asking import TOKEN, control, settled

STARTS_WITHIN_SECONDS = 300
PATIENT = ("--acquire-timeout", "10")  # engines, clients and proxy share two cores here
PORTS = {"prefill": (18110, 15610), "decode": (18210, 15620)}


class Server:
    """One engine. `extra` goes into `kv_connector_extra_config`, `args` to the end of vLLM's command line."""

    def __init__(
        self,
        role: str,
        log: Path,
        *,
        model: Path | None = None,
        engine_id: str = "",
        index: int = 0,
        args: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        connector: str = "neuron-pd",
        **extra: Any,
    ) -> None:
        port, side_channel_port = (base + 2 * index for base in PORTS[role])
        transfer: dict[str, Any] = {"kv_connector_extra_config": extra}
        if engine_id:
            transfer["engine_id"] = engine_id
        spec = serve_spec(
            role,
            str(model or model_dir("tiny")),
            port=port,
            side_channel_port=side_channel_port,
            served_name="tiny",
            max_model_len=4096,
            kv_cache_gib=1,
            prefix_caching=role == "decode",
            connector=connector,
            extra_args=["--kv-transfer-config", json.dumps(transfer), *args],
        ).for_vllm(vllm_version())
        self.url, self.log, self.argv = spec.url, log, spec.argv()
        self.environment = {**os.environ, **spec.environment(), "NEURON_PD_CONTROL_TOKEN": TOKEN, **(environment or {})}
        self.http = httpx.Client(timeout=300)

    def start(self) -> Self:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.argv, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        return self

    def wait(self) -> Self:
        """Until it serves. AssertionError with the end of its log when it never does."""
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.http.get(f"{self.url}/health").status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.5)
        self.stop()
        raise AssertionError(f"the engine did not start:\n{self.log.read_text()[-3000:]}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it and all its processes."""
        group = os.getpgid(self.process.pid) if self.process.poll() is None else None
        if group is not None:
            os.killpg(group, how)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(group, signal.SIGKILL)
                self.process.wait(30)

    def control(self, verb: str, body: dict[str, Any] | None = None) -> httpx.Response:
        return control(self.http, self.url, verb, body)

    def metric(self, name: str) -> float:
        """A sample of its /metrics, summed over labels; `name` may end in some of them."""
        return metric(self.http, self.url, name)

    def stats(self) -> dict[str, float]:
        stats: dict[str, float] = self.control("stats").json()
        return stats

    def settled(self) -> dict[str, float]:
        """Its gauges once nothing is held."""
        return settled(self.stats)

    def complete(self, prompt: Any, tokens: int, params: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
        """A completion, whole."""
        body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": tokens, "ignore_eos": True, **fields}
        if params is not None:
            body["kv_transfer_params"] = params
        response = self.http.post(f"{self.url}/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


def metric(http: httpx.Client, url: str, name: str) -> float:
    """The samples at `url`'s /metrics that begin with `name`, summed."""
    lines = http.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


class Proxy:
    """The proxy in front of some engines; `options` are for its command line."""

    def __init__(self, prefill: Sequence[Server], decode: Sequence[Server], log: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        engines = [word for server in prefill for word in ("--prefill", server.url)]
        engines += [word for server in decode for word in ("--decode", server.url)]
        port = self.url.rpartition(":")[2]
        self.argv = [sys.executable, "-m", "neuron_pd", "proxy", *engines, "--port", port, *PATIENT, *options]
        self.log, self.http = log, httpx.Client(timeout=300)

    def __enter__(self) -> Self:
        environment = {**os.environ, "NEURON_PD_CONTROL_TOKEN": TOKEN}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.argv, env=environment, stdout=log, stderr=subprocess.STDOUT)
        for _ in range(300):
            with contextlib.suppress(httpx.TransportError):
                if self.http.get(f"{self.url}/ready").status_code == 200:
                    return self
            time.sleep(0.1)
        self.__exit__()
        raise AssertionError(f"the proxy is not ready:\n{self.log.read_text()[-3000:]}")

    def __exit__(self, *_: Any) -> None:
        self.process.terminate()
        self.process.wait(30)

    def metric(self, name: str) -> float:
        return metric(self.http, self.url, name)

    def chat(self, messages: list[dict[str, str]], tokens: int = 24, **fields: Any) -> tuple[str, dict[str, str]]:
        """The reply, and the proxy's report of P's part: empty where P had none."""
        body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
        headers = fields.pop("headers", {})
        answer = self.http.post(f"{self.url}/v1/chat/completions", json={**body, **fields}, headers=headers)
        assert answer.status_code == 200, answer.text
        said = answer.headers.get("x-neuron-pd-turn", "")
        report = dict(part.strip().split("=", 1) for part in said.split(";")) if said else {}
        return answer.json()["choices"][0]["message"]["content"], report

    def cold(self, messages: list[dict[str, str]], tokens: int = 24) -> str:
        """The reply without reuse and without any cache."""
        return self.chat(messages, tokens, cache_salt=uuid4().hex, headers={"X-Neuron-PD-Reuse": "off"})[0]


class Pair:
    """A prefill and a decode engine, and a router's two legs over them."""

    def __init__(self, prefill: Server, decode: Server) -> None:
        self.prefill, self.decode = prefill, decode

    def __enter__(self) -> Self:
        for server in (self.prefill, self.decode):
            server.start()
        try:
            for server in (self.prefill, self.decode):
                server.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        for server in (self.prefill, self.decode):
            server.stop()

    def acquire(self, handle: str) -> dict[str, Any]:
        answer = self.decode.control("acquire", {"handle": handle})
        assert answer.status_code == 200, answer.text
        lease: dict[str, Any] = answer.json()["kv_transfer_params"]
        return lease

    def turn(
        self,
        prompt: Any,
        lease: dict[str, Any] | None = None,
        handle: str | None = None,
        tokens: int = 24,
        **fields: Any,
    ) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
        """The reply, P's report, and what D said of its blocks."""
        prefilled = self.prefill.complete(prompt, 1, first_leg(lease), **fields)["kv_transfer_params"]
        answer = self.decode.complete(prompt, tokens, second_leg(prefilled, handle), **fields)
        return answer["choices"][0]["text"], prefilled[TURN], answer.get("kv_transfer_params")

    def cold(self, prompt: Any, tokens: int = 24) -> str:
        """The reply without reuse and without any cache."""
        return self.turn(prompt, tokens=tokens, cache_salt=uuid4().hex)[0]
