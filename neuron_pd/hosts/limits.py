"""What the kernel lets a process have: locked memory, huge pages, shared memory."""

import re
from typing import Final

# What AWS asks of an EFA pod, and what the EFA installer reserves on a host.
EFA_HUGE_PAGES_MIB: Final = 5120
SHARED_MEMORY_BYTES: Final = 32 * 2**20  # an engine's message queues and UCX's segments
SHARED_MEMORY: Final = "dev/shm"
LIMITS: Final = "proc/self/limits"
STATUS: Final = "proc/self/status"
CAP_IPC_LOCK: Final = 14  # linux/capability.h
MEMORY: Final = "proc/meminfo"


def locked_memory(limits: str) -> int | None:
    """Bytes that a process may lock, of /proc/self/limits; None for any number. ValueError where it does not say."""
    found = re.search(r"^Max locked memory\s+(\S+)", limits, re.MULTILINE)
    if found is None:
        raise ValueError("no line for locked memory")
    return None if found[1] == "unlimited" else int(found[1])


def locks_any(status: str) -> bool:
    """Whether a process may lock memory whatever its limit, of /proc/self/status: root, a container with IPC_LOCK."""
    found = re.search(r"^CapEff:\s+([0-9a-f]+)", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> CAP_IPC_LOCK & 1)


def huge_page_bytes(meminfo: str) -> int:
    """Bytes of the default size's huge pages, of /proc/meminfo; 0 on a kernel without them."""
    count, size = (
        re.search(rf"^{name}:\s+(\d+)", meminfo, re.MULTILINE) for name in ("HugePages_Total", "Hugepagesize")
    )
    return int(count[1]) * int(size[1]) * 1024 if count and size else 0
