"""`python -m ci.libfabric COMMAND...`: run a command where NIXL's LIBFABRIC backend works without EFA.

libfabric's tcp provider takes EFA's place: the same NIXL plugin, the same calls, another wire. What that takes is made
once and kept in a cache directory: the NIXL release whose plugin goes with the newest libfabric that can be had as a
package, that libfabric, and the libraries that the plugin links against. The provider does not work on the loopback
interface, so the command runs in a network namespace of its own with an address of its own; that needs root.

Exit status 3 with one line that says why, where this machine cannot do it; otherwise the command's.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CANNOT = 3
ROOT = Path(__file__).parent.parent
# NIXL 1.4.1's plugin wants libfabric's symbols of FABRIC_1.7, which impi-rt's has (FABRIC_1.8); 1.5.1's wants more.
PYTHON_WHEELS = ("nixl==1.4.1", "nixl-cu12==1.4.1")
LIBRARY_WHEELS = ("impi-rt==2021.17.2", "nvidia-cuda-runtime-cu12==12.9.79")
LIBRARIES = ("libfabric.so.1", "libtcp-fi.so", "libcudart.so.12")
HWLOC_PACKAGE = "libhwloc15"  # Debian's and Ubuntu's name for libhwloc.so.15
ADDRESS = "10.213.0.1/24"


class Unavailable(Exception):
    """This machine cannot run LIBFABRIC over tcp; the message says why."""


def overlay(cache: Path | None = None) -> Path:
    """The directory with `python/` (to import from) and `lib/` (to load from), made where it is missing."""
    root = cache or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "neuron-pd"
    place = root / "libfabric-1"
    if not place.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as made:
            _make(Path(made) / "overlay")
            (Path(made) / "overlay").rename(place)
    return place


def _make(place: Path) -> None:
    python, lib = place / "python", place / "lib"
    lib.mkdir(parents=True)
    wheels = place / "wheels"
    _run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(python), *PYTHON_WHEELS)
    # The environment may hold a newer NIXL's build for another CUDA, which `nixl` would take instead.
    (python / "nixl_cu13.py").write_text('raise ModuleNotFoundError("hidden by ci.libfabric", name="nixl_cu13")\n')
    _run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), *LIBRARY_WHEELS)
    for wheel in wheels.iterdir():
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if (name := Path(member).name) in LIBRARIES:
                    (lib / name).write_bytes(archive.read(member))
    shutil.rmtree(wheels)
    stub = Path(__file__).with_name("libcuda_stub.c")
    _run("cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(lib / "libcuda.so.1"), str(stub))
    _hwloc(place / "hwloc", lib)
    if missing := [name for name in LIBRARIES if not (lib / name).exists()]:
        raise Unavailable(f"{missing[0]} is in none of {', '.join(LIBRARY_WHEELS)}")


def _hwloc(work: Path, lib: Path) -> None:
    if "libhwloc.so.15" in subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout:
        return
    work.mkdir()
    try:
        _run("apt-get", "--quiet", "download", HWLOC_PACKAGE, cwd=work)
        _run("dpkg", "--extract", str(next(work.glob("*.deb"))), str(work))
    except (Unavailable, StopIteration):
        raise Unavailable(f"libhwloc.so.15 is not installed: apt-get install {HWLOC_PACKAGE}") from None
    library = next(work.rglob("libhwloc.so.15"))
    shutil.copy(library.resolve(), lib / "libhwloc.so.15")
    shutil.rmtree(work)


def environment(place: Path) -> dict[str, str]:
    """What to add to the environment of a process that is to use the overlay."""
    path = os.pathsep.join(filter(None, (str(place / "python"), os.environ.get("PYTHONPATH", ""))))
    libraries = os.pathsep.join(filter(None, (str(place / "lib"), os.environ.get("LD_LIBRARY_PATH", ""))))
    return {
        "PYTHONPATH": path,
        "LD_LIBRARY_PATH": libraries,
        "FI_PROVIDER": "tcp",
        "FI_PROVIDER_PATH": str(place / "lib"),
    }


@contextmanager
def namespace() -> Iterator[str]:
    """The name of a new network namespace with an address of its own; it is gone when the block is left."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise Unavailable("LIBFABRIC over tcp needs a network namespace: run as root, with iproute2 installed")
    name = f"neuron-pd-{os.getpid()}"
    _run("ip", "netns", "add", name)
    try:
        _link(name)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def _link(name: str) -> None:
    inside = ("ip", "-n", name)
    _run(*inside, "link", "set", "lo", "up")
    # A pair that stays in the namespace: some kernels have no dummy interfaces.
    _run(*inside, "link", "add", "fabric0", "type", "veth", "peer", "name", "fabric1")
    for link in ("fabric0", "fabric1"):
        _run(*inside, "link", "set", link, "up")
    _run(*inside, "address", "add", ADDRESS, "dev", "fabric0")


def _run(*command: str, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not installed") from None
    if done.returncode:
        why = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
        raise Unavailable(f"`{' '.join(command[:4])} …` failed: {why}")


def why_not() -> str | None:
    """What keeps this machine from it, in one line; None where all is ready (the overlay is made for that)."""
    try:
        with namespace():
            overlay()
    except Unavailable as why:
        return str(why)
    return None


def run(command: Sequence[str]) -> int:
    """Run `command` in a namespace, on the overlay; its exit status, or CANNOT."""
    try:
        with namespace() as name:
            variables = {**os.environ, **environment(overlay())}
            return subprocess.run(["ip", "netns", "exec", name, *command], env=variables, check=False).returncode
    except Unavailable as why:
        sys.stderr.write(f"ci.libfabric: {why}\n")
        return CANNOT


if __name__ == "__main__":
    # Ended from outside, it still takes its namespace away.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(run(sys.argv[1:]))
