"""An emulated interconnect: two network namespaces joined by a veth pair with a rate limit, as if on two machines.

    prefill namespace               decode namespace
    kv0 198.18.N.1 ═══ tbf RATE ═══ kv0 198.18.N.2         what NIXL reads, both ways
    api0 198.18.N.6 ── npdNp .5     api0 198.18.N.10 ── npdNd .9    the HTTP API, to this machine, not limited

198.18.0.0/15 is set aside for such measurements (RFC 2544). The rate is a token bucket (tc-tbf(8)) on both ends of the
pair. Only root can make namespaces. They bear the process id of the run in their names: what a killed run left behind
is known by that, and removed by the next run or by `neuron-pd cleanup`.
"""

import contextlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Self

import psutil

from neuron_pd.errors import EngineStartError, UsageError

OPTION: Final = "--emulate-link"
UNLIMITED: Final = "unlimited"
DEVICE: Final = "kv0"
SLOTS: Final = 128
RATE: Final = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)bit", re.IGNORECASE)
FACTORS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
NAMESPACE: Final = re.compile(r"npd-(\d+)-(\d+)-(?:prefill|decode)")
LEAST_BURST: Final = 128 * 1024  # bytes: one segment that the kernel has not cut up yet, and more
BURST_SECONDS: Final = 0.001
QUEUE: Final = "100ms"
PATH: Final = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


class End(NamedTuple):
    """One engine's end: its namespace, and its addresses on the limited link and towards this machine."""

    namespace: str
    data: str
    api: str
    host_device: str
    host: str


def bits_per_second(rate: str) -> float | None:
    """A rate as tc writes it (1gbit, 250mbit), in bits a second; None for `unlimited`. UsageError for anything else."""
    if rate == UNLIMITED:
        return None
    found = RATE.fullmatch(rate.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"{OPTION} {rate!r} is not a rate: write it like 1gbit, 250mbit or {UNLIMITED}")
    return float(found[1]) * FACTORS[found[2].lower()]


def check_possible() -> None:
    """UsageError where this process cannot make namespaces and limit links."""
    if os.geteuid() != 0:
        raise UsageError(f"{OPTION} makes network namespaces: run it as root")
    for tool in ("ip", "tc"):
        if shutil.which(tool, path=PATH) is None:
            raise UsageError(f"{OPTION} needs `{tool}`: install iproute2")


@dataclass(slots=True)
class Link:
    """The two ends, while the context lasts. EngineStartError when the kernel refuses a part of it."""

    prefill: End
    decode: End

    @classmethod
    def plan(cls) -> Self:
        """A link that is not there yet, on addresses that no other run uses. UsageError as `check_possible`."""
        check_possible()
        used = {int(found[1]) for found in re.finditer(r"\bnpd(\d+)[pd]\b", _run("ip", "-o", "link"))}
        slot = next(slot for slot in range(SLOTS) if slot not in used)
        own = psutil.Process()
        name = f"npd-{own.pid}-{_ticks(own)}"
        net = f"198.18.{slot}"
        return cls(
            End(f"{name}-prefill", f"{net}.1", f"{net}.6", f"npd{slot}p", f"{net}.5"),
            End(f"{name}-decode", f"{net}.2", f"{net}.10", f"npd{slot}d", f"{net}.9"),
        )

    def __enter__(self) -> Self:
        remove_stale()
        try:
            for end in (self.prefill, self.decode):
                _run("ip", "netns", "add", end.namespace)
                _run("ip", "-n", end.namespace, "link", "set", "lo", "up")
                pair = ("type", "veth", "peer", "name", "api0", "netns", end.namespace)
                _run("ip", "link", "add", end.host_device, *pair)
                _address(None, end.host_device, end.host)
                _address(end.namespace, "api0", end.api)
            far = ("type", "veth", "peer", "name", DEVICE, "netns", self.decode.namespace)
            _run("ip", "-n", self.prefill.namespace, "link", "add", DEVICE, *far)
            for end in (self.prefill, self.decode):
                _address(end.namespace, DEVICE, end.data)
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def limit(self, rate: str) -> None:
        """Limit both directions to `rate`, each by itself; engines may be running."""
        bits = bits_per_second(rate)
        for end in (self.prefill, self.decode):
            if bits is None:
                with contextlib.suppress(EngineStartError):  # there was no limit
                    _run("tc", "-n", end.namespace, "qdisc", "del", "dev", DEVICE, "root")
                continue
            burst = max(LEAST_BURST, int(bits / 8 * BURST_SECONDS))
            bucket = ("tbf", "rate", f"{bits:.0f}bit", "burst", str(burst), "latency", QUEUE)
            _run("tc", "-n", end.namespace, "qdisc", "replace", "dev", DEVICE, "root", *bucket)

    def remove(self) -> None:
        """Take everything down, as far as it is there."""
        for end in (self.prefill, self.decode):
            for command in (("ip", "link", "del", end.host_device), ("ip", "netns", "del", end.namespace)):
                with contextlib.suppress(EngineStartError):
                    _run(*command)


def remove_stale() -> int:
    """Remove the namespaces of runs that are no more; how many there were. 0 where this process cannot look."""
    if os.geteuid() != 0 or shutil.which("ip", path=PATH) is None:
        return 0
    stale = [name for name in _namespaces() if (found := NAMESPACE.fullmatch(name)) and not _lives(*found.groups())]
    for name in stale:
        with contextlib.suppress(EngineStartError):
            _run("ip", "netns", "del", name)
    return len(stale)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]


def _lives(pid: str, ticks: str) -> bool:
    """Whether the process that made a namespace still runs; another one may have its id by now."""
    with contextlib.suppress(psutil.Error):
        return abs(_ticks(psutil.Process(int(pid))) - int(ticks)) <= 5
    return False


def _ticks(process: psutil.Process) -> int:
    """When a process began, in hundredths of a second, as the kernel counts."""
    return round(process.create_time() * 100)


def _address(namespace: str | None, device: str, address: str) -> None:
    inside = ("-n", namespace) if namespace else ()
    _run("ip", *inside, "address", "add", f"{address}/30", "dev", device)
    _run("ip", *inside, "link", "set", device, "up")


def _run(tool: str, *arguments: str) -> str:
    path = shutil.which(tool, path=PATH) or tool
    ended = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode:
        said = " ".join(ended.stderr.split())
        raise EngineStartError(f"`{tool} {' '.join(arguments)}` failed: {said or ended.returncode}")
    return ended.stdout
