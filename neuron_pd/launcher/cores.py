"""CPU cores as vLLM and `taskset` write them: "0-3,6"."""

import os
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from neuron_pd.errors import UsageError

RUN: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def available_cores() -> list[int]:
    """The cores that this process may run on, in order."""
    return sorted(os.sched_getaffinity(0))


def halves(cores: list[int]) -> tuple[list[int], list[int]]:
    """Cores for two engines: disjoint, the first not smaller, unless there is one core only."""
    if len(cores) < 2:
        return cores, cores
    middle = (len(cores) + 1) // 2
    return cores[:middle], cores[middle:]


def shares(cores: list[int], count: int) -> list[list[int]]:
    """Cores for `count` engines: disjoint runs as equal as can be; all cores for each where there are too few."""
    if len(cores) < count:
        return [cores] * count
    bounds = [len(cores) * part // count for part in range(count + 1)]
    return [cores[start:end] for start, end in pairwise(bounds)]


def format_cores(cores: Iterable[int]) -> str:
    """The shortest list: [0, 1, 2, 6] is "0-2,6"."""
    runs: list[list[int]] = []
    for core in sorted(set(cores)):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_cores(text: str) -> list[int]:
    """The cores of a list. UsageError when it is not one."""
    cores: set[int] = set()
    for part in text.split(","):
        found = RUN.fullmatch(part.strip())
        run = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not run:
            raise UsageError(f"{text!r} is not a list of cores: write it like 0-3,6")
        cores.update(run)
    return sorted(cores)


def core_count(text: str) -> int:
    """How many cores a list names; all that are available when it is empty."""
    return len(parse_cores(text)) if text else len(available_cores())
