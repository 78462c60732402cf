"""Leaving the cores to the model, where the model itself runs on the CPU.

Upstream's NIXL worker does two things that suit accelerators only. It moves the thread that it is made on to the
machine's last core, to keep transfers off the cores that compute; but that thread is OpenMP's first and computes too,
so two engines on one machine would share that core. And NIXL's progress thread polls without a pause, a whole core for
each engine, busy or idle. Without it transfers move when the engine steps, and it steps whenever one is under way: P
while it waits for KV or for its blocks to be read, D while a lease is open. That is so with UCX; LIBFABRIC's transfers
do not move without its thread.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from neuron_pd.connector.compat import agents_without_progress_thread


@contextmanager
def cores_for_the_model(wanted: bool, backends: Sequence[str] = ("UCX",)) -> Iterator[None]:
    """If `wanted`: a NIXL worker made in the block polls no core where it need not, and this thread keeps its cores."""
    if not wanted:
        yield
        return
    cores = os.sched_getaffinity(0)
    with agents_without_progress_thread() if set(backends) == {"UCX"} else nullcontext():
        yield
    os.sched_setaffinity(0, cores)
