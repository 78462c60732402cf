"""NVIDIA GPUs, their driver, and a torch that can use them."""

from typing import Final

from neuron_pd.doctor.findings import Finding, failed, not_applicable, ok, probe
from neuron_pd.doctor.site import Site
from neuron_pd.hosts.packages import CUDA_INSTALL

DRIVER: Final = "install the NVIDIA driver; in a container: --gpus all"
TORCH: Final = f"`{CUDA_INSTALL}`, in a virtual environment without a CPU build of torch"
# CUresult of cuInit, cuda.h.
RESULTS: Final = {
    "100": ("the driver sees no GPU", DRIVER),
    "802": ("the GPUs are not ready: their fabric is not set up", "`sudo systemctl start nvidia-fabricmanager`"),
    "803": ("driver and libcuda do not match", "reboot after the driver's update, or install the driver's own libcuda"),
}
CUDA_CHILD: Final = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
version = ctypes.c_int()
status = cuda.cuInit(0)
cuda.cuDriverGetVersion(ctypes.byref(version))
print(status, version.value)
"""
TORCH_CHILD: Final = """
import torch
print(torch.__version__, torch.version.cuda or "none", torch.cuda.device_count() if torch.version.cuda else 0)
"""


@probe("CUDA", "GPUs", DRIVER)
def gpus(site: Site) -> Finding:
    """the GPUs that `nvidia-smi` lists, against the instance's catalogue entry"""
    found, hardware = site.machine.gpus, site.instance.hardware
    if not _runs_here(site):
        return not_applicable(f"{len(found) or 'no'} NVIDIA GPUs, and {_needs_none(site)}")
    if hardware is None:
        return ok(site.machine.accelerators) if found else failed("nvidia-smi lists no GPU", DRIVER)
    right = [gpu for gpu in found if hardware.chip in gpu.name]
    if len(right) < hardware.devices:
        others = sorted({gpu.name for gpu in found} - {gpu.name for gpu in right})
        seen = f"{len(right)} of the {hardware.devices} {hardware.chip} of a {site.instance.name}"
        return failed(f"{seen}{'; there is ' + others[0] if others else ''}", DRIVER)
    return ok(f"{site.machine.accelerators}, driver {found[0].driver}")


@probe("CUDA", "CUDA driver", DRIVER)
def driver(site: Site) -> Finding:
    """libcuda.so.1, loaded and initialised in a child process"""
    tried = site.python(CUDA_CHILD)
    loads = tried.status == 0
    if not _runs_here(site):
        return not_applicable(f"libcuda.so.1 {'loads' if loads else 'is not there'}, and {_needs_none(site)}")
    if tried.status is None:
        return failed(f"initialising CUDA did not end within {site.seconds:g} s", "look at `dmesg | grep -i xid`")
    if not loads:
        return failed(f"libcuda.so.1 cannot be used: {tried.last_words}", DRIVER)
    status, version = tried.out.split()
    if status != "0":
        seen, fix = RESULTS.get(status, (f"cuInit answers {status}", "look up this CUresult; then `nvidia-smi -q`"))
        return failed(seen, fix)
    return ok(f"CUDA {int(version) // 1000}.{int(version) % 1000 // 10}")


@probe("CUDA", "torch CUDA", TORCH)
def torch(site: Site) -> Finding:
    """a torch that was built for CUDA and sees the GPUs, imported in a child process"""
    if not _runs_here(site):
        return not_applicable(_needs_none(site))
    tried = site.python(TORCH_CHILD)
    if tried.status is None:
        return failed(f"importing torch did not end within {site.seconds:g} s", "try `python -c 'import torch'`")
    if tried.status != 0:
        return failed(f"torch cannot be imported: {tried.last_words}", TORCH)
    version, cuda, count = tried.out.split()[-3:]
    if cuda == "none":
        return failed(f"torch {version} was built without CUDA", TORCH)
    if int(count) < len(site.machine.gpus):
        seen = f"torch {version} (CUDA {cuda}) sees {count} of {len(site.machine.gpus)} GPUs"
        return failed(seen, "unset CUDA_VISIBLE_DEVICES; else a torch that was built for this driver's CUDA")
    return ok(f"torch {version}, CUDA {cuda}, {count} GPUs")


PROBES: Final = (gpus, driver, torch)


def _runs_here(site: Site) -> bool:
    return site.instance.accelerator == "cuda" and site.runs_engines


def _needs_none(site: Site) -> str:
    return "a proxy needs none" if not site.runs_engines else f"a machine of kind {site.instance.name} needs none"
