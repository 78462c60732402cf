"""`docker run`, with the devices and limits that EFA and the accelerators need."""

import shlex
from collections.abc import Iterator, Sequence

from neuron_pd.launcher.formats import container
from neuron_pd.launcher.formats.shell import command_lines, comments
from neuron_pd.launcher.serve import ServeSpec


def docker(specs: Sequence[ServeSpec]) -> str:
    """One command for each engine, in the background."""
    return "\n".join("\n".join([*comments(container.remarks(spec)), _command(spec)]) for spec in specs)


def _command(spec: ServeSpec) -> str:
    program, words = container.program(spec)
    options = " \\\n  ".join(" ".join(map(shlex.quote, option)) for option in _options(spec, program))
    image = shlex.quote(container.image(spec))
    return f"docker run {options} \\\n  {image} \\\n  {command_lines(words)}"


def _options(spec: ServeSpec, program: str) -> Iterator[list[str]]:
    yield ["--detach", "--name", f"neuron-pd-{spec.name}"]
    yield ["--network", "host", "--ipc", "host"]
    yield ["--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1"]
    yield from _devices(spec)
    for outside, inside in container.mounts(spec):
        yield ["--volume", f"{outside}:{inside}:ro"]
    for name, value in container.environment(spec).items():
        yield ["--env", f"{name}={value}"]
    yield ["--entrypoint", program]


def _devices(spec: ServeSpec) -> Iterator[list[str]]:
    """All of the machine's, so that they have the same numbers inside; the environment chooses among them."""
    hardware = spec.instance.hardware
    if hardware is None:
        return
    if spec.instance.is_neuron:
        yield [f"--device=/dev/neuron{number}" for number in range(hardware.devices)]
    else:
        yield ["--gpus", "all"]
    if hardware.efa:
        yield [f"--device=/dev/infiniband/uverbs{number}" for number in range(hardware.efa)]
