"""What a process uses of the processor."""

from pathlib import Path

import psutil


def cpu_seconds(pid: int) -> float:
    """Processor time used so far by a process, its threads and its children; 0 for one that is gone."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(map(_of_one, family))


def _of_one(process: psutil.Process) -> float:
    """In nanoseconds from the scheduler where the kernel tells them (proc(5), schedstat), else in clock ticks."""
    try:
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except (OSError, ValueError, IndexError):
        pass
    try:
        used = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(used.user + used.system)
