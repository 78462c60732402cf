"""The packages of an engine: which releases there are, against those that neuron-pd was tested with."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from typing import Final

from neuron_pd.core.versions import MINIMUM_NIXL, is_old_nixl, is_tested, tested_releases
from neuron_pd.doctor.findings import Finding, failed, not_applicable, ok, probe, warning
from neuron_pd.doctor.site import Site
from neuron_pd.errors import UsageError
from neuron_pd.hosts.neuron_packages import INSTALL as NEURON_INSTALL
from neuron_pd.hosts.neuron_packages import NATIVE, NXD, SDKS, check_package, check_plugin
from neuron_pd.hosts.packages import CUDA_INSTALL, VLLM_DISTRIBUTIONS, install
from neuron_pd.models.packages import INSTALL, UNMATCHED

NIXL_INSTALL: Final = f"`pip install 'nixl>={MINIMUM_NIXL},<2'`"
NO_ENGINE: Final = "a proxy needs none"
RUST: Final = "VLLM_USE_RUST_FRONTEND"
COMPANIONS_CHILD: Final = """
import importlib.util
for name in ("torchvision", "torchaudio", "torchcodec"):
    if importlib.util.find_spec(name):
        __import__(name)
"""


@probe("Versions", "vLLM", f"`{INSTALL}` (cuda: `{CUDA_INSTALL}`; neuron: {NEURON_INSTALL})")
def vllm(site: Site) -> Finding:
    """vLLM's release, against those that the connector was tested with"""
    if not site.runs_engines:
        return not_applicable(NO_ENGINE)
    found = site.version(*VLLM_DISTRIBUTIONS)
    if found is None:
        return failed("vLLM is not installed", f"`{install(site.instance.accelerator)}`")
    if not is_tested(found):
        seen = f"vLLM {found}, and our connector is tested on {tested_releases()}: it refuses to start"
        return failed(
            seen, f"`{install(site.instance.accelerator)}`, or `launch --connector upstream` without our connector"
        )
    return ok(f"vLLM {found}")


@probe("Versions", "NIXL", NIXL_INSTALL)
def nixl(site: Site) -> Finding:
    """NIXL's release, against the oldest that the connector was run with; and that its two packages are of one"""
    if not site.runs_engines:
        return not_applicable(NO_ENGINE)
    found = site.version("nixl")
    if found is None:
        return failed("NIXL is not installed", NIXL_INSTALL)
    if is_old_nixl(found):
        seen = f"NIXL {found} is older than {MINIMUM_NIXL}, the first that our connector was run with"
        return failed(seen, NIXL_INSTALL)
    builds = {name: version for name in ("nixl-cu12", "nixl-cu13") if (version := site.version(name))}
    if others := [f"{name} {version}" for name, version in builds.items() if version != found]:
        seen = f"NIXL {found} over {' and '.join(others)}"
        return warning(seen, f"`pip install {' '.join(f'{name}=={found}' for name in builds)}`")
    return ok(f"NIXL {found}")


@probe("Versions", "torch", f"`{UNMATCHED}`")
def torch(site: Site) -> Finding:
    """torch, and that torchvision, torchaudio and torchcodec import beside it where they are installed"""
    if not site.runs_engines:
        return not_applicable(NO_ENGINE)
    found = site.version("torch")
    if found is None:
        return failed("torch is not installed", f"`{install(site.instance.accelerator)}`")
    tried = site.python(COMPANIONS_CHILD)
    if tried.status is None:
        return failed(f"importing torchvision did not end within {site.seconds:g} s", f"`{UNMATCHED}`")
    if tried.status != 0:
        return failed(f"a companion does not match torch {found}: {tried.last_words}", f"`{UNMATCHED}`")
    return ok(f"torch {found}")


@probe("Versions", "Neuron packages", f"`{NEURON_INSTALL}`")
def neuron(site: Site) -> Iterable[Finding]:
    """torch-neuronx and vllm-neuron (or the NxD stack), that they are no placeholders, and which SDK they are of"""
    if not site.instance.is_neuron or not site.runs_engines:
        yield not_applicable(f"a machine of kind {site.instance.name} needs none" if site.runs_engines else NO_ENGINE)
        return
    for name in NXD if site.instance.accelerator == "neuron-nxd" else NATIVE:
        yield _neuron_package(site, name)


@probe("Versions", "front end", f"unset {RUST}")
def front_end(site: Site) -> Finding:
    """that vLLM's Rust front end, which runs no middleware and so has no control path, is not asked for"""
    if not site.runs_engines:
        return not_applicable(NO_ENGINE)
    if site.environ.get(RUST, "0").lower() not in ("", "0", "false"):
        seen = f"{RUST}={site.environ[RUST]}: its API server has no control path, and nothing is reused"
        return failed(seen, f"unset {RUST}, or set it to 0, as `neuron-pd launch` does")
    return ok("vLLM's Python front end")


PROBES: Final = (vllm, nixl, torch, neuron, front_end)


def _neuron_package(site: Site, name: str) -> Finding:
    try:
        check_package(name, site.find)
        found = site.find(name).version
        if name == "vllm-neuron":
            check_plugin(found)
    except (UsageError, PackageNotFoundError) as error:
        what, _, fix = str(error).partition(": ")
        return failed(what, fix or f"`{NEURON_INSTALL}`", name)
    sdk = next((sdk.release for sdk in SDKS if sdk.plugin == found), "")
    return ok(f"{found}{f', of Neuron SDK {sdk}' if sdk else ''}", name)
