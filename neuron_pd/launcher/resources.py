"""How much memory there is, and how much an engine takes."""

from pathlib import Path
from typing import Final

import psutil

from neuron_pd.launcher.serve import ServeSpec
from neuron_pd.launcher.weights import weight_bytes

GIB: Final = 2**30
SERVER_BYTES: Final = 3 * GIB // 2  # two Python processes with torch and vLLM, beside weights and KV
CGROUPS: Final = Path("/sys/fs/cgroup")


def resident_memory(spec: ServeSpec) -> int:
    """Bytes that an engine will take: its weights, its KV cache, and the server itself."""
    return weight_bytes(spec.model, spec.dtype) + spec.kv_cache_gib * GIB + SERVER_BYTES


def available_memory(root: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that new processes can take: the machine's, or what the tightest of this process's cgroups leaves."""
    return min([int(psutil.virtual_memory().available), *_cgroup_room(root, own)])


def _cgroup_room(root: Path, own: Path) -> list[int]:
    """What each cgroup (version 2) above this process leaves. Its file cache counts as free: the kernel drops it."""
    room = []
    for group in _groups(root, own):
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None:
            room.append(max(0, limit - used + _file_cache(group)))
    return room


def _groups(root: Path, own: Path) -> list[Path]:
    try:
        line = next(line for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return [root]
    group = root / line[3:].strip("/")
    return [place for place in (group, *group.parents) if place == root or root in place.parents]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _file_cache(group: Path) -> int:
    try:
        fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(fields.get("inactive_file", 0))
    except (OSError, ValueError):
        return 0
