"""Run the real command line in a process of its own, with state and cache of the test's own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.launcher.plans import MARK, STAND_IN

COMMAND = (sys.executable, "-m", "neuron_pd")
OURS = ("NEURON_PD_", "ROLE", "BIDIR", "MODEL", "SERVED_NAME", "P_IP", "D_IP")


def program(directory: Path) -> Path:
    """`neuron-pd` of this interpreter as a program, in a directory for PATH."""
    made = directory / "neuron-pd"
    made.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m neuron_pd "$@"\n')
    made.chmod(0o755)
    return made


class Shell:
    """A person's shell: a home of its own, and every process marked as this test's."""

    def __init__(self, home: Path) -> None:
        self.home = home
        inherited = {name: text for name, text in os.environ.items() if not name.startswith(OURS)}
        self.environment = {
            **inherited,
            MARK: str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def run(
        self, *argv: str, command: tuple[str, ...] = COMMAND, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        environment = {**self.environment, **variables}
        return subprocess.run([*command, *argv], env=environment, capture_output=True, text=True, check=False)

    def start(self, *argv: str, command: tuple[str, ...] = COMMAND, **variables: str) -> "subprocess.Popen[str]":
        environment = {**self.environment, **variables}
        return subprocess.Popen(
            [*command, *argv], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def refused(self, *argv: str, **variables: str) -> str:
        """The one line on stderr of a command that must end with exit status 2, and print nothing else."""
        result = self.run(*argv, **variables)
        assert result.returncode == 2, result.stderr
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("neuron-pd: error: ")
        return line.removeprefix("neuron-pd: error: ")

    def model(self) -> str:
        """A directory that passes for a model."""
        directory = self.home / "some-model"
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text('{"max_position_embeddings": 4096}')
        return str(directory)

    def instance(self) -> str:
        """A profile whose server is the stand-in."""
        body: dict[str, Any] = {
            "kind": "instance",
            "name": "stand-in",
            "description": "a stand-in for vLLM",
            "accelerator": "cpu",
            "command": ["{python}", str(STAND_IN), "--model", "{model}"],
            "kv_transfer": {"buffer_device": "cpu", "backends": ["UCX"]},
            "defaults": {"dtype": "float32", "max_model_len": 4096, "kv_cache_gib": 1},
            "roles": {
                "prefill": {"port": 8100, "side_channel_port": 5600},
                "decode": {"port": 8200, "side_channel_port": 5601, "environment": {"STAND_IN_FAMILY": "1"}},
            },
        }
        path = self.home / "stand-in.yaml"
        path.write_text(yaml.safe_dump(body))
        return str(path)
