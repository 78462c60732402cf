"""The Neuron devices, their driver and runtime, and who holds their cores."""

from collections.abc import Iterable
from typing import Final

from neuron_pd.buffers.nrt import LIBRARY_PATH, SONAME
from neuron_pd.doctor.findings import Finding, failed, not_applicable, ok, probe, warning
from neuron_pd.doctor.site import Site

DRIVER: Final = "install aws-neuronx-dkms and `sudo modprobe neuron`; in a container: --device=/dev/neuron0 and so on"
RUNTIME: Final = f'`export LD_LIBRARY_PATH="{LIBRARY_PATH}:$LD_LIBRARY_PATH"` (package aws-neuronx-runtime-lib)'
LOGICAL: Final = "set the logical core size back (`NEURON_LOGICAL_NC_CONFIG`), or say `--cores` to `launch`"
# What each worker sets for itself, or what moves its cores under vLLM's plugin.
WORKERS_OWN: Final = ("NEURON_RT_MAP_HBM", "NEURON_RT_VISIBLE_CORES")
CHILD: Final = """
import ctypes
from neuron_pd.buffers.nrt import SONAME, Runtime
Runtime.load()
print(hasattr(ctypes.CDLL(SONAME), "nrt_get_attached_efa_bdf"))
"""


@probe("Neuron", "Neuron devices", DRIVER)
def devices(site: Site) -> Finding:
    """the devices that `neuron-ls -j` lists, against the instance's catalogue entry"""
    found, hardware = site.machine.neuron, site.instance.hardware
    if not _runs_here(site) or hardware is None:
        return not_applicable(f"{len(found) or 'no'} Neuron devices, and {_needs_none(site)}")
    if not found:
        listed = site.run("neuron-ls", "-j")
        said = "is not installed" if listed is None else f"lists none ({listed.last_words})"
        return failed(f"none of the {hardware.devices} {hardware.chip} devices: neuron-ls {said}", DRIVER)
    if len(found) < hardware.devices:
        return failed(f"{len(found)} of the {hardware.devices} {hardware.chip} devices", DRIVER)
    return ok(f"{len(found)} × {hardware.chip}, as a {site.instance.name} has")


@probe("Neuron", "Neuron cores", LOGICAL)
def cores(site: Site) -> Finding:
    """logical cores (LNC), against the number that the instance's profile cuts slices from"""
    found, hardware = sum(device.cores for device in site.machine.neuron), site.instance.hardware
    if not _runs_here(site) or hardware is None or not found:
        return not_applicable("no cores to count" if _runs_here(site) else _needs_none(site))
    sizes = ", ".join(sorted({f"LNC {device.logical_core_size}" for device in site.machine.neuron}))
    if found != hardware.cores:
        seen = f"{found} logical cores ({sizes}), and the profile of {site.instance.name} counts {hardware.cores}"
        return warning(seen, LOGICAL)
    return ok(f"{found} logical cores ({sizes})")


@probe("Neuron", "Neuron processes", "end them; what this user started: `neuron-pd cleanup server`")
def processes(site: Site) -> Finding:
    """processes on the devices, as `neuron-ls` has them: a core serves one"""
    held = {pid: device.index for device in site.machine.neuron for pid in device.pids}
    if not _runs_here(site):
        return not_applicable(_needs_none(site))
    others = sorted(set(held) - site.ours)
    if others:
        who = ", ".join(f"pid {pid} on device {held[pid]}" for pid in others[:4])
        seen = f"cores are in use: {who}{' …' if len(others) > 4 else ''}"
        return warning(seen, "end them, or choose other cores; what this user started: `neuron-pd cleanup server`")
    return ok("our own engines are on the devices" if held else "all cores are free")


@probe("Neuron", "Neuron driver", DRIVER)
def driver(site: Site) -> Finding:
    """the version of the loaded kernel module, /sys/module/neuron/version"""
    found = site.read("sys/module/neuron/version")
    if not _runs_here(site):
        loaded = f"driver {found.strip()}" if found else "the neuron driver is not loaded"
        return not_applicable(f"{loaded}, and {_needs_none(site)}")
    return ok(f"aws-neuronx-dkms {found.strip()}") if found else failed("the neuron driver is not loaded", DRIVER)


@probe("Neuron", "libnrt", RUNTIME)
def runtime(site: Site) -> Finding:
    """the Neuron runtime on the loader's path, where NIXL looks for it by its name, loaded in a child process"""
    tried = site.python(CHILD)
    loads = tried.status == 0
    if not _runs_here(site):
        said = "loads" if loads else "is not on the loader's path"
        return not_applicable(f"{SONAME} {said}, and {_needs_none(site)}")
    if tried.status is None:
        return failed(f"loading {SONAME} did not end within {site.seconds:g} s", DRIVER)
    if not loads:
        what, _, fix = tried.last_words.rpartition("BufferFault: ")[2].partition(": ")
        return failed(what, fix or RUNTIME)
    if "False" in tried.out:
        seen = "it cannot say which EFA device is next to a core (before SDK 2.29): NIXL uses every rail for each"
        return warning(seen, "update aws-neuronx-runtime-lib")
    return ok(f"{SONAME} loads")


@probe("Neuron", "Neuron environment", "unset it: each worker sets its own")
def environment(site: Site) -> Iterable[Finding]:
    """NEURON_RT_MAP_HBM and NEURON_RT_VISIBLE_CORES, which vLLM's Neuron workers set for themselves"""
    said = [name for name in WORKERS_OWN if name in site.environ]
    if site.instance.accelerator != "neuron" or not site.runs_engines:
        yield not_applicable(_needs_none(site))
    elif not said:
        yield ok("the workers set their own")
    for name in said if site.instance.accelerator == "neuron" and site.runs_engines else ():
        seen = f"{name}={site.environ[name]} in the environment that the engines inherit"
        yield failed(seen, f"unset {name}: each worker sets its own before its first device tensor", name)


PROBES: Final = (devices, cores, processes, driver, runtime, environment)


def _runs_here(site: Site) -> bool:
    return site.instance.is_neuron and site.runs_engines


def _needs_none(site: Site) -> str:
    return "a proxy needs none" if not site.runs_engines else f"a machine of kind {site.instance.name} needs none"
