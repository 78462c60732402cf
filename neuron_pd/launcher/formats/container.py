"""What a container of an engine needs of its machine, whatever runs it."""

from collections.abc import Sequence
from typing import Final

from neuron_pd.core.control import TOKEN_FILE_ENV
from neuron_pd.errors import UsageError
from neuron_pd.launcher.cores import parse_cores
from neuron_pd.launcher.serve import ServeSpec

TOKEN_PATH: Final = "/run/secrets/neuron-pd/control-token"
MODELS: Final = "/opt/neuron-pd/models"  # where our images keep embedded models


def image(spec: ServeSpec) -> str:
    """UsageError where neither the person nor the instance's profile names one."""
    if found := spec.request.image or spec.instance.image:
        return found
    raise UsageError(f"{spec.instance.name} has no container image of its own: give one with --image")


def remarks(spec: ServeSpec) -> tuple[str, ...]:
    """The engine's notes, and what its image is where nobody named another."""
    if spec.request.image or not spec.request.ours:
        return spec.notes
    return (
        *spec.notes,
        f"{image(spec)} is the vendor's, without neuron-pd and with a vLLM of its own: build on it, and give --image",
    )


def environment(spec: ServeSpec) -> dict[str, str]:
    """As on the machine, with the control token's file where the container finds it."""
    variables = spec.environment()
    return variables | {TOKEN_FILE_ENV: TOKEN_PATH} if TOKEN_FILE_ENV in variables else variables


def accelerators(spec: ServeSpec) -> list[int]:
    """The numbers of the accelerators that the engine's cores are on."""
    hardware = spec.instance.hardware
    return hardware.devices_of(parse_cores(spec.cores)) if hardware and spec.cores else []


def model_directory(spec: ServeSpec) -> str | None:
    """The directory of the machine that holds the model; None for a hub's name and for what the image holds."""
    return spec.model if spec.model.startswith("/") and not spec.model.startswith(f"{MODELS}/") else None


def mounts(spec: ServeSpec) -> list[tuple[str, str]]:
    """(on the machine, in the container), read-only: a model's directory, and the control token's file."""
    found = [(directory, directory)] if (directory := model_directory(spec)) else []
    return [*found, (str(spec.token_file), TOKEN_PATH)] if spec.token_file else found


def program(spec: ServeSpec) -> tuple[str, Sequence[str]]:
    """The program, and its words. vLLM draws the engine's id itself, at each start."""
    argv = (spec.with_engine_id(None) if spec.draws_id else spec).argv()
    return argv[0], argv[1:]
