"""Machines to examine: a captured instance type's files and tools, whole, and then one thing of it broken."""

import os
import shutil
import subprocess
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from neuron_pd.doctor.findings import Finding, Probe
from neuron_pd.doctor.site import Site
from tests.hosts.machines import install, sysfs

LIMITS = "Limit                     Soft Limit   Hard Limit   Units\nMax locked memory         {0}   {0}   bytes\n"
MEMORY = "MemTotal:       2000000000 kB\nHugePages_Total:    {0}\nHugepagesize:       2048 kB\n"
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
VERSIONS = {"vllm": "0.32.0", "nixl": "1.5.1", "nixl-cu12": "1.5.1", "torch": "2.13.0"}
NEURON_VERSIONS = {
    "vllm": "0.29.0", "nixl": "1.4.1", "torch": "2.9.0", "torch-neuronx": "2.9.0.2.12", "vllm-neuron": "0.29.0.1.2.0",
    "neuronx-distributed": "0.15.0",
}  # fmt: skip
FI_INFO = """if [ "$1" = --version ]; then echo 'libfabric: 2.6.0amzn1.0'; else {listing}; fi"""
# NIXL as far as the probe goes: the names it calls, and the log lines of the LIBFABRIC backend.
NIXL = """
import os, sys
class nixl_agent_config:
    def __init__(self, **_): pass
class nixl_agent:
    def __init__(self, *_): pass
    def get_plugin_list(self): return ["LIBFABRIC", "UCX"]
    def create_backend(self, name, _):
        if name == "LIBFABRIC":
            wire = os.environ.get("WIRE", "efa")
            for number in range(int(os.environ.get("RAILS", "16"))):
                print(f"Created rail {number} (device=rdmap{number}s0-rdm, provider={wire})", file=sys.stderr)
"""


class Machine:
    """Everything that a good machine of this instance type shows. Tests take one thing away."""

    def __init__(self, place: Path, instance: str) -> None:
        self.instance, self.root, self.tools = instance, place / "root", place / "tools"
        sysfs(self.root, instance)
        for name in ("fi_info", "neuron-ls", "nvidia-smi", "chronyc"):  # whatever this machine itself has
            self.tool(name, "exit 1")
        install(self.tools, instance)
        self.packages: dict[str, str] = {**(NEURON_VERSIONS if instance.startswith(("trn", "inf")) else VERSIONS)}
        self.metadata = METADATA
        self._metadata, self.modules = place / "metadata", place / "modules"
        self.write("proc/self/limits", LIMITS.format("unlimited"))
        self.write("proc/meminfo", MEMORY.format(5128))
        self.write("dev/shm/.keep", "")
        self.write("sys/module/neuron/version", "2.26.5.0\n")
        self.tool("timedatectl", "echo yes")
        listing = (self.tools / "fi_info").read_text().splitlines()[1]
        self.tool("fi_info", FI_INFO.format(listing=listing))
        self.module("nixl/__init__.py", "")
        self.module("nixl/_api.py", NIXL)
        self.environ = {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.modules),
            "HOME": str(place),
        }
        self.free = 2**34

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def module(self, path: str, text: str) -> None:
        (self.modules / path).parent.mkdir(parents=True, exist_ok=True)
        (self.modules / path).write_text(text)

    def tool(self, name: str, script: str) -> None:
        self.tools.mkdir(parents=True, exist_ok=True)
        (self.tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.tools / name).chmod(0o755)

    def find(self, name: str) -> Distribution:
        if name not in self.packages:
            raise PackageNotFoundError(name)
        place = self._metadata / f"{name.replace('-', '_')}-{self.packages[name]}.dist-info"
        place.mkdir(parents=True, exist_ok=True)
        (place / "METADATA").write_text(self.metadata.format(name=name, version=self.packages[name]))
        return Distribution.at(place)

    def site(self, **given: Any) -> Site:
        given = {"seconds": 20.0, **given}
        return Site(root=self.root, environ=self.environ, find=self.find, free_bytes=lambda _: self.free, **given)


def look(probe: Probe[Any], place: Any) -> list[Finding]:
    found = probe.look(place)
    return [found] if isinstance(found, Finding) else list(found)


def only(probe: Probe[Any], place: Any) -> Finding:
    (finding,) = look(probe, place)
    return finding


def build_plugin(plugin: Path, needs: str) -> None:
    """A shared library that is linked with `needs`, which nobody finds afterwards. Skips without a C compiler."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler (cc) to build a plugin with")
    gone = plugin.with_name(needs)
    flags = [compiler, "-shared", "-fPIC", "-x", "c"]
    subprocess.run([*flags, "-", f"-Wl,-soname,{needs}", "-o", str(gone)], input="int of_it;", text=True, check=True)
    linked = "extern int of_it; int *address(void) { return &of_it; }"
    subprocess.run([*flags, "-", "-x", "none", str(gone), "-o", str(plugin)], input=linked, text=True, check=True)
    gone.unlink()
