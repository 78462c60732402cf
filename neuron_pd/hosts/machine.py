"""One look at a machine: what it says it is, and what is in it."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from neuron_pd.hosts import nvidia
from neuron_pd.hosts.efa import kernel_efa_devices
from neuron_pd.hosts.neuron import NeuronDevice, parse_neuron_ls
from neuron_pd.hosts.nvidia import Gpu, parse_nvidia_smi

PRODUCT: Final = "sys/devices/virtual/dmi/id/product_name"
VENDOR: Final = "sys/devices/virtual/dmi/id/sys_vendor"
NEURON_LS: Final = ("neuron-ls", "-j")
NEURON_TOOLS: Final = "/opt/aws/neuron/bin"  # not on every user's PATH
SECONDS: Final = 30.0

T = TypeVar("T")
Run = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class Machine:
    """`product` is the instance type on EC2, "" elsewhere."""

    product: str = ""
    neuron: tuple[NeuronDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    efa: tuple[str, ...] = ()

    @property
    def accelerators(self) -> str:
        """In words: "8 × NVIDIA H200", "16 Neuron devices", "no accelerator"."""
        if self.gpus:
            return f"{len(self.gpus)} × {self.gpus[0].name}"
        if self.neuron:
            return f"{len(self.neuron)} Neuron device{'s' if len(self.neuron) > 1 else ''}"
        return "no accelerator"


def observe(root: Path = Path("/"), run: Run | None = None) -> Machine:
    """Ask the kernel (below `root`) and the vendors' tools. A tool that is missing, fails or hangs says nothing."""
    run = run or output_of
    return Machine(
        product=_product(root),
        neuron=tuple(_parsed(parse_neuron_ls, run(NEURON_LS))),
        gpus=tuple(_parsed(parse_nvidia_smi, run(nvidia.QUERY))),
        efa=tuple(kernel_efa_devices(root)),
    )


def output_of(command: Sequence[str]) -> str | None:
    """A command's standard output; None when it is not there, fails, or takes longer than SECONDS."""
    program = shutil.which(command[0]) or shutil.which(command[0], path=NEURON_TOOLS)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, timeout=SECONDS, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _product(root: Path) -> str:
    try:
        if "amazon" not in (root / VENDOR).read_text().lower():
            return ""
        return (root / PRODUCT).read_text().strip()
    except OSError:
        return ""


def _parsed(parse: Callable[[str], list[T]], text: str | None) -> list[T]:
    try:
        return parse(text) if text else []
    except (ValueError, KeyError, TypeError):
        return []
