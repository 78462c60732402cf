"""NIXL's progress thread polls without a pause. On the CPU platform it would take half a core from the model."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TASKS = Path("/proc/self/task")


def native_threads() -> set[int]:
    """Ids of this process's threads that Python did not start; empty where the kernel does not tell."""
    try:
        ids = {int(task.name) for task in TASKS.iterdir()}
    except OSError:
        return set()
    return ids - {thread.native_id for thread in threading.enumerate() if thread.native_id}


@contextmanager
def idle_priority(wanted: bool) -> Iterator[None]:
    """Native threads that start inside the block run only when a core has nothing else to do (SCHED_IDLE), if `wanted`.

    A transfer still moves at full speed: while KV is on its way, the model that waits for it leaves its core idle.
    """
    before = native_threads()
    yield
    if wanted:
        for thread in native_threads() - before:
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
