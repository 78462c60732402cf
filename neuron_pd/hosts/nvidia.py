"""`nvidia-smi`: the NVIDIA GPUs of a machine."""

from dataclasses import dataclass
from typing import Final

QUERY: Final = ("nvidia-smi", "--query-gpu=index,name,memory.total,pci.bus_id,driver_version", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `memory` in bytes; nvidia-smi counts what the driver leaves, a little less than the data sheet."""

    index: int
    name: str
    memory: int
    bdf: str
    driver: str


def parse_nvidia_smi(text: str) -> list[Gpu]:
    """The GPUs that `QUERY` prints, one a line. ValueError when a line is not one (no driver, no device)."""
    return [_gpu(line) for line in text.splitlines() if line.strip()]


def _gpu(line: str) -> Gpu:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 5 or not parts[0].isdigit():
        raise ValueError(f"not a GPU: {line.strip()}")
    index, name, memory, bdf, driver = parts
    mebibytes = memory.removesuffix("MiB").strip()
    return Gpu(int(index), name, int(mebibytes) * 2**20 if mebibytes.isdigit() else 0, bdf.lower(), driver)
