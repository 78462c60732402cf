"""EFA: the devices, libfabric's provider for them, and that nothing falls back to TCP unsaid."""

import re
from typing import Final

from neuron_pd.doctor.commands import Ran
from neuron_pd.doctor.findings import Finding, failed, not_applicable, ok, probe
from neuron_pd.doctor.site import Site
from neuron_pd.hosts.efa import QUERY, VERSION_QUERY, efa_devices, libfabric_version, parse_fi_info

INSTALLER: Final = (
    "run the EFA installer: `sudo ./efa_installer.sh -y` (in a container: -y -g --skip-kmod --skip-limit-conf "
    "--no-verify)"
)
INTERFACES: Final = (
    "launch the instance with an EFA interface on each network card and load the efa driver; in a container: "
    "--device=/dev/infiniband/uverbs0 and so on"
)
MINIMUM_LIBFABRIC: Final = (1, 21)  # what NIXL's LIBFABRIC plugin is built on


@probe("EFA", "EFA devices", INTERFACES)
def devices(site: Site) -> Finding:
    """the kernel's EFA devices, against the instance's catalogue entry"""
    found, wanted = len(site.machine.efa), site.efa_wanted
    if not wanted:
        return not_applicable(f"{found or 'no'} EFA devices, and {_kv_goes(site)}")
    if found < wanted:
        return failed(f"{found} of the {wanted} EFA devices of a {site.instance.name}", INTERFACES)
    return ok(f"{found}, as a {site.instance.name} has: {site.machine.efa[0]} …")


@probe("EFA", "EFA provider", INSTALLER)
def provider(site: Site) -> Finding:
    """what `fi_info -p efa -t FI_EP_RDM` lists, against the kernel's devices"""
    asked = site.run(*QUERY)
    listed = efa_devices(parse_fi_info(asked.out)) if asked is not None else []
    if not site.efa_wanted:
        return not_applicable(f"{_fi_info(asked, len(listed))}, and {_kv_goes(site)}")
    if not listed:
        seen = f"{_fi_info(asked, 0)}: NIXL would fail, hang, or go over TCP and say nothing"
        return failed(seen, INSTALLER)
    if missing := sorted(set(site.machine.efa) - set(listed)):
        seen = f"libfabric opens {len(listed)} of the kernel's {len(site.machine.efa)} devices; not {missing[0]}"
        return failed(seen, f"look at `dmesg | grep efa` and at the rights of /dev/infiniband; else {INSTALLER}")
    return ok(f"provider efa on {len(listed)} devices")


@probe("EFA", "libfabric", INSTALLER)
def version(site: Site) -> Finding:
    """the version that `fi_info --version` prints, against what NIXL's plugin needs"""
    asked = site.run(*VERSION_QUERY)
    found = libfabric_version(asked.out) if asked is not None and asked.status == 0 else None
    if "LIBFABRIC" not in site.backends or not site.runs_engines:
        return not_applicable(f"libfabric {found or 'is not installed'}, and {_kv_goes(site)}")
    if found is None:
        said = "is not installed" if asked is None else f"does not say which libfabric there is ({asked.last_words})"
        return failed(f"fi_info {said}", INSTALLER)
    minimum = ".".join(map(str, MINIMUM_LIBFABRIC))
    if _numbers(found) < MINIMUM_LIBFABRIC:
        return failed(f"libfabric {found}, and NIXL's plugin needs {minimum} or later", INSTALLER)
    return ok(f"libfabric {found}")


@probe("EFA", "libfabric environment", "unset it: `neuron-pd launch` sets what the engines need")
def environment(site: Site) -> Finding:
    """FI_PROVIDER (another than efa is TCP) and FI_EFA_ENABLE_SHM_TRANSFER in the environment that engines inherit"""
    if not site.efa_wanted:
        return not_applicable(_kv_goes(site))
    chosen = site.environ.get("FI_PROVIDER", "efa")
    if "efa" not in chosen.split(","):
        seen = f"FI_PROVIDER={chosen}: a server that inherits it moves KV over {chosen} and not over EFA"
        return failed(seen, "unset FI_PROVIDER, or set it to efa, as `neuron-pd launch` does")
    if site.instance.is_neuron and site.environ.get("FI_EFA_ENABLE_SHM_TRANSFER", "0") != "0":
        seen = "FI_EFA_ENABLE_SHM_TRANSFER is on: two engines on one host exchange wrong KV and say nothing"
        return failed(seen, "unset FI_EFA_ENABLE_SHM_TRANSFER, or set it to 0, as `neuron-pd launch` does")
    return ok("nothing in it keeps libfabric from EFA")


PROBES: Final = (devices, provider, version, environment)


def _kv_goes(site: Site) -> str:
    """Why this machine needs no EFA."""
    if not site.runs_engines:
        return "a proxy moves no KV"
    return f"a machine of kind {site.instance.name} needs none: KV goes over {', '.join(site.backends)}"


def _fi_info(asked: Ran | None, listed: int) -> str:
    if asked is None:
        return "fi_info is not installed"
    if asked.status is None:
        return "fi_info hangs"
    return f"fi_info lists {listed or 'no'} EFA devices" + ("" if listed else f" ({asked.last_words})")


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 6) of "2.6.0amzn1.0"."""
    found = re.findall(r"\d+", version)
    return tuple(map(int, found[:2]))
