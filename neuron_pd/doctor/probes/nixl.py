"""NIXL: that it can be imported, that its plugin finds its libraries, and that a backend comes up, over the right wire.

One child process tries all of it and prints a line of JSON for each step, so that what hangs or crashes is known by
the step that is missing.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from neuron_pd.doctor.commands import Ran
from neuron_pd.doctor.findings import Finding, failed, not_applicable, ok, probe, warning
from neuron_pd.doctor.site import Site
from neuron_pd.hosts.packages import install
from neuron_pd.models.packages import INSTALL

LIBFABRIC: Final = "LIBFABRIC"
NO_ENGINE: Final = "a proxy moves no KV"
EFA_FIRST: Final = "see EFA devices, EFA provider and libfabric environment"
NIXL_LOG: Final = "NIXL_LOG_LEVEL=DEBUG says more; see the plugin's libraries above"
ERROR: Final = re.compile(r"^E\d{4} \S+ +\d+ [^\]]*\] (?!createBackend)(.*)", re.MULTILINE)
RAIL: Final = re.compile(r"Created rail \d+ \(device=([^,)]+)(?:, provider=([^,)]+))?")
LIBRARIES: Final = {
    "libfabric.so": "run the EFA installer, and put /opt/amazon/efa/lib on LD_LIBRARY_PATH",
    "libhwloc.so": "`sudo apt-get install -y libhwloc15`",
    "libcuda.so": "install the NVIDIA driver; without a GPU put a libcuda.so.1 stub on LD_LIBRARY_PATH",
    "libcudart.so": "`pip install nvidia-cuda-runtime-cu12`, and put its lib directory on LD_LIBRARY_PATH",
    "libnrt.so": "put /opt/aws/neuron/lib on LD_LIBRARY_PATH (package aws-neuronx-runtime-lib)",
}
CHILD: Final = """
import ctypes, json, os, subprocess
from pathlib import Path
def say(**step): print(json.dumps(step), flush=True)
def missing(plugin):
    try:
        lines = subprocess.run(["ldd", str(plugin)], capture_output=True, text=True).stdout.splitlines()
    except OSError:
        return []
    return [line.split()[0] for line in lines if line.endswith("=> not found")]
def unloadable(plugin):
    try:
        ctypes.CDLL(str(plugin))
    except OSError as error:
        return str(error)
    return ""
import nixl._api as api
package = Path(api.__file__).parent
say(step="import", package=package.name)
place = Path(os.environ.get("NIXL_PLUGIN_DIR") or package.parent / f".{package.name}.mesonpy.libs" / "plugins")
agent = api.nixl_agent("neuron-pd-doctor", api.nixl_agent_config(backends=[]))
for name in BACKENDS:
    plugin, why, lacks = place / f"libplugin_{name}.so", "", []
    if name not in agent.get_plugin_list():
        why = "no such plugin; there are " + ", ".join(agent.get_plugin_list())
    elif plugin.is_file() and (why := unloadable(plugin)):
        lacks = missing(plugin)
    say(step="plugin", backend=name, why=why, lacks=lacks)
    if not why:
        try:
            agent.create_backend(name, {})
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        say(step="backend", backend=name, why=why)
"""


@probe("NIXL", "NIXL import", f"`{INSTALL}` (cuda, neuron: the extra of the accelerator)")
def imported(site: Site) -> Finding:
    """`import nixl._api`, which is what vLLM imports, in a child process"""
    if not site.runs_engines:
        return not_applicable(NO_ENGINE)
    tried = _try(site)
    if found := _step(tried, "import"):
        return ok(f"NIXL {site.version('nixl')} ({found['package']})")
    fix = f"`{install(site.instance.accelerator)}`"
    if tried.status is None:
        seen = f"importing NIXL did not end within {site.seconds:g} s"
        return failed(seen, "look at `python -X importtime -c 'import nixl._api'`")
    if "No module named 'nixl'" in tried.last_words:
        return failed("NIXL is not installed", fix)
    return failed(f"NIXL cannot be imported: {tried.last_words}", f"{fix}, in a fresh virtual environment")


@probe("NIXL", "NIXL plugin", "the library that is missing, by its own line")
def plugin(site: Site) -> Iterable[Finding]:
    """the plugin of each NIXL backend that the instance's profile names, and the libraries that it is linked with"""
    if not site.runs_engines:
        yield not_applicable(NO_ENGINE)
        return
    tried = _try(site)
    for backend in site.backends:
        found = _step(tried, "plugin", backend)
        if found is None:
            yield not_applicable("NIXL cannot be imported", backend)
        elif found["why"]:
            yield _unloadable(found["why"], found["lacks"], backend)
        else:
            yield ok("all its libraries are found", backend)


@probe("NIXL", "NIXL backend", "EFA devices and their provider; then a NIXL that fits this libfabric")
def backend(site: Site) -> Iterable[Finding]:
    """an agent with each of these backends, made in a child under a timeout; with EFA, LIBFABRIC's rails are over it"""
    if not site.runs_engines:
        yield not_applicable(NO_ENGINE)
        return
    tried = _try(site)
    for name in site.backends:
        if (found := _step(tried, "backend", name)) is not None:
            yield _refused(found["why"], name, tried) if found["why"] else _came_up(site, name, tried)
            continue
        reached = _step(tried, "plugin", name)
        if reached is None or reached["why"]:
            yield not_applicable("its plugin does not load", name)
        elif tried.status is None:
            seen = f"making a NIXL agent hangs ({site.seconds:g} s): LIBFABRIC does where it finds no EFA device"
            yield failed(seen, EFA_FIRST, name)
        else:
            yield failed(f"the process ended with status {tried.status}: {tried.last_words}", NIXL_LOG, name)


PROBES: Final = (imported, plugin, backend)


def _try(site: Site) -> Ran:
    settings = site.instance.settings(site.roles[0])
    wire = {name: text for name, text in settings.environment.items() if name.startswith(("FI_", "UCX_"))}
    missing = {name: text for name, text in wire.items() if name not in site.environ}
    return site.python(f"BACKENDS = {list(site.backends)}\n{CHILD}", NIXL_LOG_LEVEL="DEBUG", **missing)


def _step(tried: Ran, name: str, backend: str | None = None) -> dict[str, Any] | None:
    """What the child said when it was through with a step; None where it never was."""
    for line in tried.out.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and said.get("step") == name and said.get("backend") == backend:
            return said
    return None


def _unloadable(why: str, lacks: list[str], backend: str) -> Finding:
    named = lacks or [why.partition(":")[0]]
    fixes = [fix for library, fix in LIBRARIES.items() if any(name.startswith(library) for name in named)]
    seen = f"{' and '.join(lacks)} {'is' if len(lacks) == 1 else 'are'} missing" if lacks else why
    return failed(seen, "; ".join(fixes) or "install what is missing, or another release of NIXL", backend)


def _refused(why: str, backend: str, tried: Ran) -> Finding:
    """It did not, with what NIXL logged last."""
    said = ERROR.findall(tried.err + tried.out)
    seen = f"{why}: {said[-1]}" if said else why
    return failed(seen, EFA_FIRST if backend == LIBFABRIC else NIXL_LOG, backend)


def _came_up(site: Site, backend: str, tried: Ran) -> Finding:
    """It did; LIBFABRIC also says over which provider."""
    if backend != LIBFABRIC:
        return ok("an agent was made", backend)
    rails = RAIL.findall(tried.out + tried.err)
    providers = Counter(provider or _provider_of(device) for device, provider in rails)
    said = ", ".join(
        f"{count} rail{'s' if count > 1 else ''} over {provider}" for provider, count in sorted(providers.items())
    )
    if not rails:
        return warning("an agent was made, and NIXL does not say over what", NIXL_LOG, backend)
    if site.efa_wanted and set(providers) != {"efa"}:
        return failed(f"KV would silently go over TCP: {said}", EFA_FIRST, backend)
    if len(rails) < site.efa_wanted:
        return failed(f"{said}, of {site.efa_wanted} devices", "see EFA devices", backend)
    return ok(said, backend)


def _provider_of(device: str) -> str:
    """Releases of NIXL that do not name the provider name the device: rdmap… and efa_… are EFA's."""
    return "efa" if device.startswith(("rdmap", "efa")) else device
