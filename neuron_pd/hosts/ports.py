"""Is a port free, and if not, who has it."""

import contextlib
import errno
import shlex
import socket
from typing import Final

import psutil

from neuron_pd.errors import PortInUse, UsageError

COMMAND: Final = 80  # characters of a holder's command line


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


def holder(port: int) -> str:
    """Who listens on a port: its pid and command line, as far as this user may know."""
    pid = listener(port)
    return "a process of another user" if pid is None else f"pid {pid} ({command_of(pid)})"


def listener(port: int) -> int | None:
    """The pid of who listens on a port, as far as this user may know."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local and local.port == port and connection.pid:
                return int(connection.pid)
    return None


def command_of(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        line = " ".join(shlex.join(process.cmdline()).split()) or process.name()
        return line if len(line) <= COMMAND else f"{line[: COMMAND - 1]}…"
    return "ended meanwhile"
