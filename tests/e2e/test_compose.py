"""launch/compose.yaml for real, but for the containers: its services in a network namespace with their addresses."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from neuron_pd.launcher.formats.container import MODELS, TOKEN_PATH
from neuron_pd.models import model_dir
from tests.launch_assets.tools import LAUNCH

pytestmark = [pytest.mark.e2e, pytest.mark.vllm]
READY_SECONDS = 300
COMPOSE = yaml.safe_load((LAUNCH / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


@pytest.fixture
def namespace() -> Iterator[list[str]]:
    """The words before a command that is to run where the services' addresses are."""
    if os.geteuid() != 0 or subprocess.run(["ip", "netns"], capture_output=True, check=False).returncode:
        pytest.skip("a network namespace needs root, and iproute2")
    name = f"neuron-pd-{uuid4().hex[:8]}"
    (subnet,) = [one["subnet"] for one in COMPOSE["networks"]["default"]["ipam"]["config"]]
    inside = ["ip", "-n", name]
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run([*inside, "link", "add", "own0", "type", "veth", "peer", "name", "own1"], check=True)
        for link in ("lo", "own0", "own1"):
            subprocess.run([*inside, "link", "set", link, "up"], check=True)
        for service in SERVICES.values():
            if address := service.get("networks", {}).get("default", {}).get("ipv4_address"):
                own = f"{address}/{subnet.split('/')[1]}"
                subprocess.run([*inside, "address", "add", own, "dev", "own0"], check=True)
        yield ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


class Containers:
    """Starts the services as Compose would, with the model and the token where this machine has them."""

    def __init__(self, place: Path, within: list[str]) -> None:
        self.place, self.within = place, within
        (place / "control-token").write_text("compose")
        self.places = {f"{MODELS}/tiny": str(model_dir("tiny")), TOKEN_PATH: str(place / "control-token")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {"PATH": path, "HOME": str(place), "XDG_STATE_HOME": str(place / "state")}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def here(self, text: str) -> str:
        return self.places.get(text, text.replace("$$", "$"))

    def start(self, name: str) -> None:
        service = SERVICES[name]
        words = [self.here(word) for word in (*service["entrypoint"], *service["command"])]
        variables = {key: self.here(value) for key, value in service["environment"].items()}
        with (self.place / f"{name}.log").open("w") as log:
            self.running[name] = subprocess.Popen(
                [*self.within, *words], env={**self.environment, **variables}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def wait(self, name: str) -> None:
        """Until the service's own health check is content."""
        kind, *check = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        deadline = time.monotonic() + READY_SECONDS
        while self.ask(*map(self.here, check)).returncode:
            log = (self.place / f"{name}.log").read_text()[-3000:]
            assert self.running[name].poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(1)

    def ask(self, *command: str) -> "subprocess.CompletedProcess[str]":
        variables = {**self.environment, "NEURON_PD_CONTROL_TOKEN_FILE": self.places[TOKEN_PATH]}
        return subprocess.run([*self.within, *command], env=variables, capture_output=True, text=True, check=False)

    def stop(self) -> None:
        for process in self.running.values():
            os.killpg(process.pid, signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def containers(tmp_path: Path, namespace: list[str]) -> Iterator[Containers]:
    made = Containers(tmp_path, namespace)
    yield made
    made.stop()


def test_the_services_serve_together_and_reuse_works(containers: Containers) -> None:
    engines = [name for name, service in SERVICES.items() if "depends_on" not in service]
    for act in (containers.start, containers.wait):
        each: Callable[[str], None] = act
        for name in engines:
            each(name)
    (proxy,) = SERVICES.keys() - set(engines)
    assert set(SERVICES[proxy]["depends_on"]) == set(engines)
    containers.start(proxy)
    containers.wait(proxy)
    port = SERVICES[proxy]["ports"][0].rsplit(":", 1)[1]
    doctor = containers.ask("python3", "-m", "neuron_pd", "doctor", "--json", "--url", f"http://127.0.0.1:{port}")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    verdicts = {finding["probe"]: finding["verdict"] for finding in json.loads(doctor.stdout)["findings"]}
    assert verdicts["reuse"] == "ok"
