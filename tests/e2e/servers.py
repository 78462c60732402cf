"""Single engines for what the common cluster does not have: other settings, other models, ends and restarts."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import httpx

from neuron_pd.core.transfer import TURN, first_leg, second_leg
from neuron_pd.launcher.serve import serve_spec
from neuron_pd.models import model_dir
from tests.e2e.asking import TOKEN, control, settled

STARTS_WITHIN_SECONDS = 300
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
            extra_args=["--kv-transfer-config", json.dumps(transfer), *args],
        )
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
