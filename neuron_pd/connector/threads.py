"""Which threads compute and which wait, where the model itself runs on the CPU.

Upstream's NIXL worker moves the thread that it is made on to the machine's last core, to keep transfers off the cores
that compute. But that thread is OpenMP's first and computes too: two engines on one machine would share that core. And
NIXL's progress thread polls without a pause, so it would take half a core from the model that it serves.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TASKS = Path("/proc/self/task")
# Beside a computing thread that is about 7 in 100 of a core (sched(7)): enough to move KV, not enough to be felt.
PROGRESS_NICE = 12


@contextmanager
def compute_first(wanted: bool) -> Iterator[None]:
    """If `wanted`: keep this thread on its cores, and let native threads that start here take any core, politely."""
    if not wanted:
        yield
        return
    cores, before = os.sched_getaffinity(0), native_threads()
    yield
    os.sched_setaffinity(0, cores)
    for thread in native_threads() - before:
        # The kernel leaves out the cores that this process may not use.
        os.sched_setaffinity(thread, range(os.cpu_count() or 1))
        os.setpriority(os.PRIO_PROCESS, thread, PROGRESS_NICE)


def native_threads() -> set[int]:
    """Ids of this process's threads that Python did not start; empty where the kernel does not tell."""
    try:
        ids = {int(task.name) for task in TASKS.iterdir()}
    except OSError:
        return set()
    return ids - {thread.native_id for thread in threading.enumerate() if thread.native_id}
