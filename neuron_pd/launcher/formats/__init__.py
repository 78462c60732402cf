"""An engine, or several of one role, as text: for a shell, a machine, systemd, Docker or Kubernetes."""

from collections.abc import Callable, Sequence
from typing import Final

from neuron_pd.launcher.formats.docker import docker
from neuron_pd.launcher.formats.json_text import as_json
from neuron_pd.launcher.formats.kubernetes import kubernetes
from neuron_pd.launcher.formats.shell import shell
from neuron_pd.launcher.formats.systemd import systemd
from neuron_pd.launcher.serve import ServeSpec

Format = Callable[[Sequence[ServeSpec]], str]

FORMATS: Final[dict[str, Format]] = {
    "shell": shell,
    "json": as_json,
    "systemd": systemd,
    "docker": docker,
    "k8s": kubernetes,
}
