import ctypes
import os
import threading
from collections.abc import Iterator

import pytest

from neuron_pd.connector.threads import PROGRESS_NICE, compute_first, native_threads


def native_thread() -> None:
    """A thread that Python knows nothing of, asleep until the process ends."""
    libc = ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)


def started_in_block(wanted: bool) -> int:
    """The one native thread that starts while this thread is moved to its last core, as upstream moves it."""
    before = native_threads()
    with compute_first(wanted):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        native_thread()
    (thread,) = native_threads() - before
    return thread


@pytest.fixture(autouse=True)
def cores() -> Iterator[set[int]]:
    allowed = os.sched_getaffinity(0)
    yield allowed
    os.sched_setaffinity(0, allowed)


def test_the_computing_thread_stays_and_native_ones_are_polite_everywhere(cores: set[int]) -> None:
    thread = started_in_block(wanted=True)
    assert os.sched_getaffinity(0) == cores
    assert os.sched_getaffinity(thread) == cores
    assert os.getpriority(os.PRIO_PROCESS, thread) == PROGRESS_NICE
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == 0


def test_elsewhere_nothing_is_touched(cores: set[int]) -> None:
    thread = started_in_block(wanted=False)
    assert os.sched_getaffinity(0) == {max(cores)}
    assert os.getpriority(os.PRIO_PROCESS, thread) == 0
