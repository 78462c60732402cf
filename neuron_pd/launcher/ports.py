"""Ports that this user's starts keep apart from each other."""

import fcntl
import os
from collections.abc import Iterable
from itertools import combinations
from typing import Final

from neuron_pd.errors import PortInUse, UsageError
from neuron_pd.hosts.addresses import EVERYWHERE
from neuron_pd.hosts.ports import command_of
from neuron_pd.launcher.state import state_dir

_reserved: Final[dict[tuple[str, int], int]] = {}  # this process's locks: descriptors that stay open until it ends


def reserve_port(host: str, port: int, purpose: str) -> None:
    """Keep a free port for this process until it ends, against other starts by this user: PortInUse when one was first.

    An engine loads its model before it listens, so a free port may be spoken for. The lock goes with the process, also
    through exec into the server, and is no lock against other programs.
    """
    if (host, port) in _reserved:
        return
    path = state_dir() / "ports" / f"{host or 'any'}-{port}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; set XDG_STATE_HOME") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        first = os.read(lock, 20).decode() or "0"
        os.close(lock)
        raise PortInUse(
            f"port {port}, which {purpose} needs, is kept by pid {first} ({command_of(int(first))}), "
            "which is starting: stop it, or choose another port"
        ) from error
    os.truncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    os.set_inheritable(lock, True)
    _reserved[host, port] = lock


def check_distinct(ports: Iterable[tuple[str, int, str]]) -> None:
    """UsageError when two of the (host, port, purpose) are one."""
    for (host, port, purpose), (other_host, other_port, other) in combinations(ports, 2):
        if port == other_port and (host == other_host or host in EVERYWHERE or other_host in EVERYWHERE):
            raise UsageError(f"{purpose} and {other} are both on port {port}: give one of them another")
