import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from neuron_pd.errors import UsageError
from neuron_pd.launcher.formats.docker import docker
from tests.launcher.engines import ONE_NODE, engine
from tests.launcher.formats.recording import hostile, recorder, run_as_shell

MANY = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def started(text: str, path: Path) -> list[str]:
    """What docker got."""
    recorder(path, "docker")
    ((argv, _),) = run_as_shell(text, path)
    return argv


def options(argv: list[str], name: str) -> list[str]:
    return [argv[index + 1] for index, word in enumerate(argv) if word == name]


@MANY
@given(name=hostile, host=hostile)
def test_docker_gets_what_was_meant(name: str, host: str, tmp_path: Path) -> None:
    spec = engine("p5en.48xlarge", served_name=name, prefill_host=f"h{host}", connector="upstream")
    argv = started(docker([spec]), tmp_path)
    assert argv[-len(spec.argv()) + 1 :] == spec.argv()[1:]
    assert argv[-len(spec.argv())] == spec.instance.image
    assert options(argv, "--entrypoint") == ["vllm"]
    assert options(argv, "--env") == [f"{name}={value}" for name, value in spec.environment().items()]


def test_devices_and_limits_on_trn2(tmp_path: Path) -> None:
    argv = started(docker([engine("trn2.48xlarge", "decode", **ONE_NODE)]), tmp_path)
    devices = [word.removeprefix("--device=") for word in argv if word.startswith("--device=")]
    assert devices == [
        *(f"/dev/neuron{number}" for number in range(16)),
        *(f"/dev/infiniband/uverbs{number}" for number in range(16)),
    ]
    for name, value in (
        ("--network", "host"),
        ("--ipc", "host"),
        ("--cap-add", "IPC_LOCK"),
        ("--ulimit", "memlock=-1"),
    ):
        assert options(argv, name) == [value]
    assert "NEURON_VISIBLE_DEVICES=56-63" in options(argv, "--env")


def test_gpus(tmp_path: Path) -> None:
    argv = started(docker([engine("p5en.48xlarge", "prefill", "-tp", "4")]), tmp_path)
    assert options(argv, "--gpus") == ["all"]
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3" in options(argv, "--env")


def test_the_token_and_a_models_directory_are_mounted_and_the_id_is_vllms(tmp_path: Path) -> None:
    model, token = tmp_path / "model", tmp_path / "token"
    model.mkdir()
    spec = engine("p5en.48xlarge", model=str(model), token_file=token, python="python3")
    argv = started(docker([spec]), tmp_path)
    assert options(argv, "--volume") == [
        f"{model}:{model}:ro", f"{token}:/run/secrets/neuron-pd/control-token:ro",
    ]  # fmt: skip
    assert "NEURON_PD_CONTROL_TOKEN_FILE=/run/secrets/neuron-pd/control-token" in options(argv, "--env")
    assert "engine_id" not in json.loads(argv[-1])
    assert str(token) not in os.linesep.join(options(argv, "--env"))


def test_the_image() -> None:
    with pytest.raises(UsageError, match="cpu has no container image of its own: give one with --image"):
        docker([engine("cpu", prefill_host="127.0.0.1", decode_host="127.0.0.1", model="owner/name")])
    text = docker([engine("p5en.48xlarge", image="mine:1")])
    assert "mine:1" in text
    assert "is the vendor's" not in text
    assert "is the vendor's, without neuron-pd" in docker([engine("p5en.48xlarge")])
    assert "is the vendor's" not in docker([engine("p5en.48xlarge", connector="upstream")])
