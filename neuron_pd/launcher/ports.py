"""Is a port free, and if not, who has it."""

import contextlib
import errno
import fcntl
import os
import shlex
import socket
from collections.abc import Iterable
from itertools import combinations
from typing import Final

import psutil

from neuron_pd.errors import PortInUse, UsageError
from neuron_pd.launcher.state import state_dir

EVERYWHERE: Final = ("", "0.0.0.0", "::")
COMMAND: Final = 80  # characters of a holder's command line
_reserved: Final[dict[tuple[str, int], int]] = {}  # this process's locks: descriptors that stay open until it ends


def check_port_free(host: str, port: int, purpose: str) -> None:
    """PortInUse, with the holder, when something listens there; UsageError when it cannot be listened on at all."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UsageError(f"{host!r}, where {purpose} is to listen, is not an address: {error.strerror}") from error
    with socket.socket(family, kind, protocol) as probe:
        # As servers do it: connections of an earlier server that are still closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"port {port}, which {purpose} needs, is in use by {holder(port)}: stop it, or choose another port"
                ) from error
            raise UsageError(f"{purpose} cannot listen on {host} port {port}: {error.strerror}") from error


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
            f"port {port}, which {purpose} needs, is kept by pid {first} ({_command(int(first))}), which is starting: "
            "stop it, or choose another port"
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


def holder(port: int) -> str:
    """Who listens on a port: its pid and command line, as far as this user may know."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local and local.port == port and connection.pid:
                return f"pid {connection.pid} ({_command(connection.pid)})"
    return "a process of another user"


def _command(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        line = " ".join(shlex.join(process.cmdline()).split()) or process.name()
        return line if len(line) <= COMMAND else f"{line[: COMMAND - 1]}…"
    return "ended meanwhile"
