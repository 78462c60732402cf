"""What can be known to be wrong before anything is started: each check raises a UsageError of one line."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from neuron_pd.core.control import TOKEN_FILE_ENV, control_token
from neuron_pd.errors import UsageError
from neuron_pd.hosts.limits import SHARED_MEMORY_BYTES
from neuron_pd.hosts.packages import check_engine_packages
from neuron_pd.hosts.ports import check_port_free
from neuron_pd.launcher.cores import available_cores, format_cores, parse_cores
from neuron_pd.launcher.layout import check_cores_apart
from neuron_pd.launcher.ports import check_distinct, reserve_port
from neuron_pd.launcher.resources import GIB, available_memory, resident_memory
from neuron_pd.launcher.serve import ServeSpec
from neuron_pd.launcher.topology import Topology
from neuron_pd.launcher.weights import kv_bytes_per_token
from neuron_pd.models import NAMES

LOG_BYTES: Final = 64 * 2**20
SHARED_MEMORY: Final = Path("/dev/shm")


def check_model(model: str, hub: bool = True) -> None:
    """An embedded model, a directory with a config.json, or (with `hub`) something that can be a hub's owner/name."""
    path = Path(model).expanduser()
    if model in NAMES or (path / "config.json").is_file():
        return
    if path.is_dir():
        raise UsageError(f"{model} is not a model: it has no config.json")
    if path.exists():
        raise UsageError(f"{model} is a file: a model is a directory with a config.json")
    if not hub or model.count("/") != 1 or model[:1] in "/.~-":
        raise UsageError(f"there is no model directory {model}: give one, or an embedded model: {' or '.join(NAMES)}")


def check_engine(spec: ServeSpec) -> None:
    """All that one engine needs on this machine."""
    check_distinct(_engine_ports(spec))
    check_engine_packages(spec.instance.accelerator, spec.request.ours)
    check_settings(spec)
    check_resources([spec])
    _check_ports(_engine_ports(spec))


def check_topology(topology: Topology) -> None:
    """All that both engines and the proxy need on this machine."""
    engines = [topology.prefill, topology.decode]
    ports = [port for spec in engines for port in _engine_ports(spec)]
    ports.append((topology.proxy_host, topology.proxy_port, "the proxy (--proxy-port)"))
    check_distinct(ports)
    check_cores_apart({spec.role: spec.layout for spec in engines}, topology.prefill.instance)
    check_engine_packages(topology.prefill.instance.accelerator)
    for spec in engines:
        check_settings(spec)
    check_resources(engines)
    check_writable(topology.run_dir, "the logs", "--run-dir")
    check_disk(topology.run_dir, LOG_BYTES, "logs", "--run-dir")
    _check_ports(ports)


def check_settings(spec: ServeSpec) -> None:
    """Cores that are there, a control token that can be read, and room for one sequence."""
    if spec.token_file is not None:
        control_token({TOKEN_FILE_ENV: str(spec.token_file)})
    if spec.instance.accelerator != "cpu":
        return
    if spec.cores and (missing := sorted(set(parse_cores(spec.cores)) - set(available_cores()))):
        has = format_cores(available_cores())
        raise UsageError(
            f"{spec.role} is to run on cores {spec.cores} and {missing[0]} is not there: choose from {has}"
        )
    check_kv_fits(spec)


def check_kv_fits(spec: ServeSpec) -> None:
    """One sequence of the greatest length must fit into the KV cache; vLLM refuses to start otherwise."""
    per_token = kv_bytes_per_token(spec.model, spec.dtype)
    if per_token is None or per_token * spec.max_model_len <= spec.kv_cache_gib * GIB:
        return
    needed = -(-per_token * spec.max_model_len // GIB)
    raise UsageError(
        f"{spec.max_model_len} tokens of this model take {needed} GiB of KV, {spec.role} has {spec.kv_cache_gib} GiB: "
        "raise --kv-cache-gib or lower --max-model-len"
    )


def check_resources(engines: list[ServeSpec]) -> None:
    """Memory for all engines, and shared memory."""
    on_cpu = [spec for spec in engines if spec.instance.accelerator == "cpu"]
    needed, available = sum(map(resident_memory, on_cpu)), available_memory()
    if needed > available:
        roles = " and ".join(spec.role for spec in on_cpu)
        raise UsageError(
            f"too little memory: {roles} need {needed / GIB:.1f} GiB and {available / GIB:.1f} GiB is available; "
            f"free some, or lower --kv-cache-gib ({on_cpu[0].kv_cache_gib} GiB an engine)"
        )
    if SHARED_MEMORY.is_dir():
        needed = SHARED_MEMORY_BYTES * len(engines)
        check_disk(SHARED_MEMORY, needed, "shared memory", "in a container, its shared memory size")


def check_writable(path: Path, purpose: str, remedy: str) -> None:
    """A directory that this user can write to, or make, at `path`."""
    place = _existing(path)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write {purpose} to {path}: {place} is not a directory to write to; change {remedy}")


def check_disk(path: Path, needed: int, purpose: str, remedy: str) -> None:
    """`needed` bytes free where `path` is, or will be."""
    place = _existing(path)
    free = shutil.disk_usage(place).free
    if free < needed:
        raise UsageError(
            f"too little disk for {purpose}: {place} has {free / 2**20:.0f} MiB free and {needed / 2**20:.0f} MiB are "
            f"needed; free some, or change {remedy}"
        )


def _existing(path: Path) -> Path:
    """The path itself, or the closest parent that exists."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return place


def _engine_ports(spec: ServeSpec) -> list[tuple[str, int, str]]:
    """Its API's, and one of the side channel for each data-parallel rank."""
    channels = range(spec.side_channel_port, spec.side_channel_port + spec.layout.data_parallel)
    return [
        (spec.host, spec.port, f"{spec.role} (its port)"),
        *((spec.side_channel_host, port, f"{spec.role} (its side channel)") for port in channels),
    ]


def _check_ports(ports: Iterable[tuple[str, int, str]]) -> None:
    """Free, and from now on this process's."""
    for host, port, purpose in ports:
        check_port_free(host, port, purpose)
        reserve_port(host, port, purpose)
