"""`python -m neuron_pd.launcher.tether GRACE COMMAND...`: run a command that cannot outlive its supervisor.

The supervisor holds the other end of this process's standard input and never writes to it. When that end closes (the
supervisor stops the command, or died in whatever way), or on SIGTERM, the command's process group gets SIGTERM and
`GRACE` seconds; its descendants then have a moment to tidy up, and what is left is killed. Descendants that lost their
parent, also in sessions of their own, come to this process, because it is a subreaper (prctl(2)): so none is missed.
Exits as the command did, with 128 + signal number where a signal ended it.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from typing import Final

import psutil

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
CANNOT_RUN: Final = 127
KILL_SECONDS: Final = 30.0
ORPHAN_SECONDS: Final = 5.0


def main(argv: list[str]) -> int:
    """Run `argv[1:]`, with `argv[0]` seconds of grace, until it ends or the supervisor's end closes."""
    grace, command = float(argv[0]), argv[1:]
    become_subreaper()
    alarm, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        child = _spawn(command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        return CANNOT_RUN
    _wait_any(child.pid, [sys.stdin.fileno(), alarm])
    status = _end(child, grace)
    _see_off(min(grace, ORPHAN_SECONDS))
    kill_all(psutil.Process())
    return status if status >= 0 else 128 - status


def become_subreaper() -> None:
    """From here on, descendants that lose their parent become children of this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _spawn(command: list[str]) -> "subprocess.Popen[bytes]":
    tether, libc = os.getpid(), ctypes.CDLL(None)

    def die_with_tether() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != tether:
            os._exit(CANNOT_RUN)

    # This process has one thread, so running code between fork and exec is safe.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=die_with_tether,  # noqa: PLW1509
    )


def _wait_any(pid: int, stops: list[int]) -> None:
    """Until the process has ended, or one of the descriptors says something or closed."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    for descriptor in (ended, *stops):
        poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.close(ended)


def _end(child: subprocess.Popen[bytes], grace: float) -> int:
    """The child's exit status, negative for a signal; its process group is told to end, whether it has or not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        child.kill()
    return child.wait()


def _see_off(seconds: float) -> None:
    """Wait for the descendants: Python's resource tracker unlinks shared memory once all others have ended."""
    deadline = time.monotonic() + seconds
    while psutil.Process().children() and time.monotonic() < deadline:
        _reap()
        time.sleep(0.05)


def kill_all(root: psutil.Process) -> None:
    """Kill every descendant of `root`, again and again until none is left, and reap those that came to this process.

    Gives up after KILL_SECONDS: the kernel does not end a process that waits for a broken device.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while (processes := root.children(recursive=True)) and time.monotonic() < deadline:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _reap()
        time.sleep(0.01)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
