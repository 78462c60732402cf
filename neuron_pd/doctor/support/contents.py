"""The files of a report, as texts. Secrets may still be in them: the archive takes them out."""

import json
import os
import platform
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from neuron_pd.doctor.cluster.place import Cluster
from neuron_pd.doctor.logs.sources import File, Source
from neuron_pd.doctor.site import Site
from neuron_pd.doctor.support.secrets import MARK, is_secret
from neuron_pd.doctor.verdict import Examination
from neuron_pd.errors import UsageError
from neuron_pd.hosts.efa import QUERY, VERSION_QUERY
from neuron_pd.hosts.limits import LIMITS, MEMORY, STATUS
from neuron_pd.hosts.machine import NEURON_LS

LOG_BYTES: Final = 4 * 2**20
JOURNAL_LINES: Final = 20_000
# Variables that say how engines and proxy run; no other is looked at.
VARIABLES: Final = ("NEURON", "VLLM", "FI_", "NIXL", "UCX", "CUDA", "NVIDIA", "NCCL", "HF_", "XDG_", "PYTHON", "OMP_")
FURTHER: Final = ("PATH", "LD_LIBRARY_PATH", "P_IP", "D_IP", "ROLE", "BIDIR", "MODEL", "SERVED_NAME", "LANG", "TZ")
TOOLS: Final[Mapping[str, Sequence[str]]] = {
    "fi_info.txt": QUERY,
    "fi_info-version.txt": VERSION_QUERY,
    "neuron-ls.json": NEURON_LS,
    "nvidia-smi.txt": ("nvidia-smi",),
    "nvidia-smi-topology.txt": ("nvidia-smi", "topo", "-m"),
}
FILES: Final = (LIMITS, STATUS, MEMORY, "proc/cpuinfo", "proc/mounts", "etc/os-release", "sys/module/neuron/version")


def examination(found: Examination) -> str:
    """What the doctor found, as `--json` has it."""
    return _json(found.as_json())


def versions() -> str:
    """Python, the system, and every installed package."""
    packages = sorted({f"{found.name}=={found.version}" for found in distributions() if found.name}, key=str.casefold)
    return "\n".join([f"python {sys.version}", platform.platform(), "", *packages, ""])


def configuration(site: Site, processes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The environment, the instance's settings for each role, and the command lines of what runs."""
    environ = {
        name: MARK if is_secret(name) else value
        for name, value in sorted(site.environ.items())
        if name.startswith(VARIABLES) or name in FURTHER
    }
    settings = {role: site.instance.settings(role) for role in site.instance.roles}
    profile = {"instance": site.instance.name, "settings": {role: repr(value) for role, value in settings.items()}}
    return {
        "configuration/environment.json": _json(environ),
        "configuration/profile.json": _json(profile),
        "configuration/processes.json": _json(list(processes)),
    }


def cluster(found: Cluster | None) -> dict[str, str]:
    """What the proxy and the engines said."""
    if found is None:
        return {}
    engines = [
        {"engine": engine.name, "down": engine.down, "info": engine.info.as_json() if engine.info else None}
        for engine in found.engines
    ]
    said = {"proxy": found.proxy, "proxy_down": found.proxy_down, "ready": found.ready, "engines": engines}
    return {"cluster.json": _json(said)}


def machine(site: Site) -> dict[str, str]:
    """What the vendors' tools print, and the kernel's files."""
    texts = {}
    for name, command in TOOLS.items():
        ran = site.run(*command)
        texts[f"machine/{name}"] = "not installed\n" if ran is None else f"{ran.out}{ran.err}"
    for path in FILES:
        if (text := site.read(path)) is not None:
            texts[f"machine/{path.replace('/', '-')}"] = text
    return texts


def logs(sources: Sequence[Source]) -> dict[str, str]:
    """The end of each log, or why it cannot be read."""
    texts: dict[str, str] = {}
    for source in sources:
        name = f"logs/{source.name}.log"
        while name in texts:
            name = name.replace(".log", "-.log")
        try:
            texts[name] = _end(source.path) if isinstance(source, File) else _last(source.lines(follow=False))
        except (OSError, UsageError) as error:
            texts[name] = f"cannot be read: {error}\n"
    return texts


def _end(path: Path, size: int = LOG_BYTES) -> str:
    """The last bytes of a file, from the beginning of a line: half a secret at the cut would not be known for one."""
    with path.open("rb") as stream:
        begin = max(0, os.fstat(stream.fileno()).st_size - size)
        stream.seek(begin)
        if begin:
            stream.readline()
        return stream.read(size).decode(errors="replace")


def _last(lines: Iterator[str | None]) -> str:
    kept = deque((line for line in lines if line is not None), maxlen=JOURNAL_LINES)
    return "".join(f"{line.rstrip()}\n" for line in kept)


def _json(body: Any) -> str:
    return json.dumps(body, indent=2, ensure_ascii=False, default=str) + "\n"
