"""What the system lets an engine have: locked memory, huge pages, shared memory."""

from typing import Final

from neuron_pd.doctor.findings import Finding, failed, not_applicable, ok, probe, warning
from neuron_pd.doctor.site import Site
from neuron_pd.hosts.limits import (
    EFA_HUGE_PAGES_MIB,
    LIMITS,
    MEMORY,
    SHARED_MEMORY,
    SHARED_MEMORY_BYTES,
    STATUS,
    huge_page_bytes,
    locked_memory,
    locks_any,
)

MIB: Final = 2**20
UNLIMITED: Final = (
    "`* - memlock unlimited` in /etc/security/limits.conf and a new login; a unit: LimitMEMLOCK=infinity; a container: "
    "--ulimit memlock=-1 or --cap-add IPC_LOCK"
)
HUGE_PAGES: Final = (
    f"`sudo sysctl -w vm.nr_hugepages={EFA_HUGE_PAGES_MIB // 2}`; a pod: hugepages-2Mi: {EFA_HUGE_PAGES_MIB}Mi"
)
LARGER: Final = "a container: a greater --shm-size, or --ipc host; a pod: an emptyDir of medium Memory at /dev/shm"


@probe("System", "locked memory", UNLIMITED)
def memlock(site: Site) -> Finding:
    """the limit on locked memory (`ulimit -l`), and CAP_IPC_LOCK: memory that is registered with EFA is locked"""
    limit = locked_memory(site.read(LIMITS) or "")
    said = "unlimited" if limit is None else f"limited to {limit // 1024} KiB"
    if not site.efa_wanted:
        return not_applicable(f"{said}, and nothing is registered with EFA here")
    if limit is None:
        return ok(said)
    if locks_any(site.read(STATUS) or ""):
        return ok(f"{said}, which CAP_IPC_LOCK sets aside")
    return failed(f"{said}: registering KV with EFA locks all of it", UNLIMITED)


@probe("System", "huge pages", HUGE_PAGES)
def huge_pages(site: Site) -> Finding:
    """huge pages of 2 MiB, which libfabric's EFA provider takes its buffers from"""
    found = huge_page_bytes(site.read(MEMORY) or "")
    if not site.efa_wanted:
        return not_applicable(f"{found // MIB} MiB, and nothing here asks for them")
    if found < EFA_HUGE_PAGES_MIB * MIB:
        return warning(f"{found // MIB} MiB of huge pages, and EFA is given {EFA_HUGE_PAGES_MIB}", HUGE_PAGES)
    return ok(f"{found // MIB} MiB of huge pages")


@probe("System", "shared memory", LARGER)
def shared_memory(site: Site) -> Finding:
    """what is free in /dev/shm, where an engine's processes and UCX exchange messages"""
    if not site.runs_engines:
        return not_applicable("a proxy needs none")
    place, needed = site.root / SHARED_MEMORY, SHARED_MEMORY_BYTES * len(site.roles)
    if not place.is_dir():
        return failed("there is no /dev/shm", LARGER)
    free = site.free_bytes(place)
    if free < needed:
        return failed(f"{free // MIB} MiB free in /dev/shm, and {needed // MIB} are needed", LARGER)
    return ok(f"{free // MIB} MiB free in /dev/shm")


PROBES: Final = (memlock, huge_pages, shared_memory)
