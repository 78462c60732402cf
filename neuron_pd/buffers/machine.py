"""What adapters ask about the machine that they run on."""

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neuron_pd.errors import UsageError

LIBFABRIC, UCX = "LIBFABRIC", "UCX"


class BufferFault(UsageError):
    """Memory that cannot be registered as things are; the message has the line that changes it."""


@dataclass(frozen=True, slots=True)
class Region:
    """One piece of memory for NIXL: an address, its length in bytes, and the device id that goes with it."""

    address: int
    nbytes: int
    device_id: int = 0


def _memlock() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY else limit


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, or in a test another one: its sysfs, and the bytes that a process may lock (None: any number)."""

    sysfs: Path = Path("/sys")
    memlock: int | None = field(default_factory=_memlock)

    def efa_devices(self) -> list[str]:
        """EFA devices by name: rdmap* where the driver names them by address, efa_* where it counts them."""
        place = self.sysfs / "class" / "infiniband"
        found = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
        return [name for name in found if name.startswith(("rdmap", "efa"))]

    def instance_type(self) -> str:
        """As EC2's firmware names it ("trn2.48xlarge"); what another machine's says, or nothing."""
        place = self.sysfs / "devices" / "virtual" / "dmi" / "id" / "product_name"
        try:
            return place.read_text().strip()
        except OSError:
            return ""

    def best_backends(self) -> tuple[str, ...]:
        """LIBFABRIC where there is EFA, else UCX."""
        return (LIBFABRIC,) if self.efa_devices() else (UCX,)

    def require_efa(self) -> None:
        """BufferFault where libfabric is to use EFA and there is none: NIXL would hang, or go over TCP unsaid."""
        if os.environ.get("FI_PROVIDER", "efa") == "efa" and not self.efa_devices():
            raise BufferFault(
                f"no EFA device under {self.sysfs}/class/infiniband, and LIBFABRIC is to use one: launch the instance "
                "with EFA network interfaces and install the EFA driver (a container: --device=/dev/infiniband/uverbs0 "
                'and so on), or set "backends": ["UCX"] with "buffer": "staged"'
            )

    def require_memlock(self, regions: Sequence[Region]) -> None:
        """BufferFault where fewer bytes may be locked than EFA has to lock to register host memory."""
        needed = sum(region.nbytes for region in regions)
        if self.memlock is not None and self.memlock < needed:
            raise BufferFault(
                f"the limit on locked memory is {self.memlock} bytes and registering KV for EFA locks {needed}: "
                "`ulimit -l unlimited` (limits.conf: `* - memlock unlimited`; a container: --ulimit memlock=-1)"
            )


def uses_efa(backends: Sequence[str]) -> bool:
    """Whether host memory that is registered with `backends` is registered with EFA."""
    return LIBFABRIC in backends and os.environ.get("FI_PROVIDER", "efa") == "efa"
