"""One machine, as the probes see it: everything that they ask goes through here, so that a test can be any machine."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from threading import Lock
from typing import Final

from neuron_pd.doctor.commands import Ran, run, run_python
from neuron_pd.errors import UsageError
from neuron_pd.hosts.machine import Machine, observe
from neuron_pd.profiles import Instance, Profiles
from neuron_pd.profiles.detect import PLAIN, instance_of

TOOLS: Final = ("opt/aws/neuron/bin", "opt/amazon/efa/bin")  # not on every user's PATH
ENGINE_ROLES: Final = ("prefill", "decode")


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


@dataclass(frozen=True, kw_only=True)
class Site:
    """A machine and the role that it is to have: prefill, decode, proxy, or None where it was not said.

    `root` is where /sys, /proc and /opt are, `environ` the environment of the engines to come, `seconds` how long a
    child process may take, `hosts` the address of each role's node where it is known. `ours` are processes that
    neuron-pd started here.
    """

    role: str | None = None
    instance_name: str | None = None
    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    seconds: float = 60.0
    hosts: Mapping[str, str] = field(default_factory=dict)
    ours: frozenset[int] = frozenset()
    profiles: Profiles = field(default_factory=Profiles)
    find: Callable[[str], Distribution] = distribution
    free_bytes: Callable[[Path], int] = _free_bytes
    _lock: Lock = field(default_factory=Lock, repr=False)
    _locks: dict[str, Lock] = field(default_factory=dict, repr=False)
    _children: dict[str, Ran] = field(default_factory=dict, repr=False)

    @cached_property
    def machine(self) -> Machine:
        return observe(self.root, self._output)

    @cached_property
    def detected(self) -> str:
        """The kind of machine as it is asked for or found. UsageError where that leaves none or several."""
        return self.instance_name or instance_of(self.machine, self.profiles)

    @cached_property
    def instance(self) -> Instance:
        """Its profile; that of a plain machine where the kind is not known."""
        try:
            return self.profiles.instance(self.detected)
        except UsageError:
            return self.profiles.instance(PLAIN)

    @property
    def runs_engines(self) -> bool:
        return self.role != "proxy"

    @property
    def roles(self) -> Sequence[str]:
        """The engine roles that it is to have: both where none was said."""
        return [self.role] if self.role in ENGINE_ROLES else ENGINE_ROLES if self.runs_engines else ()

    @property
    def efa_wanted(self) -> int:
        """EFA devices that this kind of machine has, where its engines use them."""
        hardware = self.instance.hardware
        return hardware.efa if hardware is not None and self.runs_engines else 0

    @property
    def backends(self) -> Sequence[str]:
        """NIXL's backends that its engines use."""
        return self.instance.kv_transfer.backends

    def run(self, *argv: str) -> Ran | None:
        """A tool of this machine; None where it is not installed."""
        path = os.pathsep.join([self.environ.get("PATH", os.defpath), *(str(self.root / place) for place in TOOLS)])
        return run(argv, {**self.environ, "PATH": path}, self.seconds)

    def python(self, code: str, **environment: str) -> Ran:
        """Python code in a child process. The same code runs once, whoever asks for it."""
        with self._lock:
            own = self._locks.setdefault(code, Lock())
        with own:
            if code not in self._children:
                self._children[code] = run_python(code, {**self.environ, **environment}, self.seconds)
            return self._children[code]

    def version(self, *names: str) -> str | None:
        """The version of the first of these distributions that is installed."""
        for name in names:
            try:
                return self.find(name).version
            except PackageNotFoundError:
                continue
        return None

    def read(self, path: str) -> str | None:
        """A file below the root; None where it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return None

    def _output(self, command: Sequence[str]) -> str | None:
        ran = self.run(*command)
        return ran.out if ran is not None and ran.status == 0 else None
