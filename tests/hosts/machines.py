"""Machines out of captured shapes: a sysfs tree, and tools that print what was captured."""

from collections.abc import Callable, Sequence
from pathlib import Path

from neuron_pd.hosts.machine import Machine, observe

CAPTURED = Path(__file__).with_name("captured")
INSTANCES = sorted(path.name for path in CAPTURED.iterdir() if path.is_dir())
TOOLS = {"neuron-ls": "neuron-ls.json", "nvidia-smi": "nvidia-smi.csv", "fi_info": "fi_info.txt"}


def captured(instance: str, name: str) -> str:
    return (CAPTURED / instance / name).read_text()


def sysfs(root: Path, instance: str, product: bool = True) -> Path:
    """The machine's /sys below `root`; without `product` as where a hypervisor hides it."""
    dmi = root / "sys/devices/virtual/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "sys_vendor").write_text("Amazon EC2\n" if product else "QEMU\n")
    (dmi / "product_name").write_text(captured(instance, "product_name") if product else "Standard PC\n")
    for name in captured(instance, "infiniband.txt").split():
        device = root / "sys/class/infiniband" / name / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1d0f\n")
    return root


def tools(instance: str) -> Callable[[Sequence[str]], str | None]:
    """Runs nothing: what the instance's tools print, None for a tool that it does not have."""

    def run(command: Sequence[str]) -> str | None:
        path = CAPTURED / instance / TOOLS[command[0]]
        return path.read_text() if path.is_file() else None

    return run


def machine(root: Path, instance: str, product: bool = True) -> Machine:
    return observe(sysfs(root, instance, product), tools(instance))


def install(directory: Path, instance: str) -> Path:
    """The same tools as programs, in a directory for PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    for program, name in TOOLS.items():
        path = CAPTURED / instance / name
        if path.is_file():
            script = directory / program
            script.write_text(f"#!/bin/sh\ncat '{path}'\n")
            script.chmod(0o755)
    return directory
