"""Where an engine is on its machine: its cores and its ports, so that several engines do not collide.

Engines of one role stand side by side. On one machine prefill takes cores from the first one up and decode from the
last one down, so that neither needs to know how many the other has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from neuron_pd.errors import UsageError
from neuron_pd.launcher.cores import available_cores, format_cores, halves, parse_cores, shares
from neuron_pd.launcher.flags import number, override, parse_flags
from neuron_pd.launcher.request import Request
from neuron_pd.profiles import ROLES, Instance, Settings

STAGGER_SECONDS: Final = 10  # the Neuron runtimes of engines that start at once get into each other's way


@dataclass(frozen=True, slots=True)
class Layout:
    """`side_channel_port` is the first of as many as there are data-parallel ranks."""

    cores: str
    port: int
    side_channel_port: int
    tensor_parallel: int
    data_parallel: int

    @property
    def ranks(self) -> int:
        return self.tensor_parallel * self.data_parallel


def lay_out(request: Request, instance: Instance, settings: Settings) -> Layout:
    """UsageError when the machine does not have the cores, or a slice of them cannot be the engine's."""
    tensor, data = parallelism(request, settings)
    role = instance.roles[request.role]
    shared = role.shared_side_channel_port if request.one_machine else None
    first_channel = request.side_channel_port or shared or role.side_channel_port
    here = _ranks_here(request, instance, tensor, data)
    cores = (
        _cpu_cores(request)
        if instance.hardware is None or instance.accelerator == "cpu"
        else _slice(request, instance, tensor, here)
    )
    return Layout(
        cores=cores,
        port=(request.port or role.port) + request.index,
        side_channel_port=first_channel + request.index * data,
        tensor_parallel=tensor,
        data_parallel=data,
    )


def _ranks_here(request: Request, instance: Instance, tensor: int, data: int) -> int:
    """How many cores of this machine the engine takes: all of its own, or its share where it spans several nodes."""
    if request.nodes == 1:
        return tensor * data
    if instance.accelerator != "cuda" or data > 1:
        raise UsageError(
            "an engine spans nodes on CUDA with tensor parallelism only: leave --nodes out, or start more engines"
        )
    if tensor % request.nodes:
        raise UsageError(f"--tensor-parallel-size {tensor} cannot be shared out to {request.nodes} nodes")
    return tensor // request.nodes


def parallelism(request: Request, settings: Settings) -> tuple[int, int]:
    """Tensor-parallel size and data-parallel size, with a person's own flags over the profile's."""
    ours = {
        "tensor-parallel-size": settings.tensor_parallel_size or 1,
        "data-parallel-size": settings.data_parallel_size or 1,
    }
    flags, _ = override(ours, parse_flags(request.extra_args))
    sizes = [number(flags, name) for name in ours]
    for name, size in zip(ours, sizes, strict=True):
        if size is None or size < 1:
            raise UsageError(f"--{name} is {flags.get(name)!r}: use a whole number above 0")
    return sizes[0] or 1, sizes[1] or 1


def check_apart(request: Request, own: Layout, instance: Instance, peer_settings: Settings) -> None:
    """On one machine: UsageError when this engine and one of the other role would be in each other's place."""
    if not request.one_machine:
        return
    other = replace(request, role=request.peer, index=0, port=None, side_channel_port=None, cores=None)
    peer = lay_out(other, instance, peer_settings)
    if own.port == peer.port:
        raise UsageError(f"port {own.port} is {request.peer}'s on this machine: give --port another")
    if common := set(_channels(own)) & set(_channels(peer)):
        raise UsageError(
            f"side-channel port {min(common)} is {request.peer}'s on this machine (an engine takes one for each "
            "data-parallel rank): give --side-channel-port another"
        )
    check_cores_apart({request.role: own, request.peer: peer}, instance)


def check_cores_apart(layouts: Mapping[str, Layout], instance: Instance) -> None:
    """UsageError when two engines of one machine share an accelerator's core. CPU cores may be shared."""
    if instance.accelerator == "cpu":
        return
    for (one, own), (other, peer) in combinations(layouts.items(), 2):
        if common := set(parse_cores(own.cores)) & set(parse_cores(peer.cores)):
            raise UsageError(
                f"{one} on cores {own.cores} and {other} on {peer.cores} share core {min(common)} of this machine: "
                "lower --tensor-parallel-size (behind --), or choose other --cores"
            )


def _channels(layout: Layout) -> range:
    return range(layout.side_channel_port, layout.side_channel_port + layout.data_parallel)


def _cpu_cores(request: Request) -> str:
    """A half of this machine's cores where the other role must be on it too, else all; shared out to the engines."""
    if request.cores is not None:
        return format_cores(parse_cores(request.cores))
    cores = available_cores()
    if request.one_machine:
        cores = halves(cores)[ROLES.index(request.role)]
    return format_cores(shares(cores, request.engines)[request.index])


def _slice(request: Request, instance: Instance, tensor: int, size: int) -> str:
    """A run of `size` cores of the accelerators."""
    hardware = instance.hardware
    assert hardware is not None
    cores = _chosen(request, hardware.cores, tensor, size)
    last = hardware.cores - 1
    if cores[0] < 0 or cores[-1] > last:
        many = f"{request.engines} {request.role} engines" if request.engines > 1 else f"a {request.role} engine"
        beside = f" beside {request.peer}" if request.one_machine else ""
        raise UsageError(
            f"{instance.name} has cores 0-{last}: {many} of {size} cores{beside} do not fit; lower --engines or "
            "--tensor-parallel-size (behind --)"
        )
    if len(cores) != size:
        over = f"x data parallel {size // tensor}" if request.nodes == 1 else f"on {request.nodes} nodes"
        raise UsageError(
            f"tensor parallel {tensor} {over} is {size} cores and --cores {request.cores} is {len(cores)}: "
            "make them equal"
        )
    if hardware.aligned_slices and (cores[0] % tensor or cores[-1] - cores[0] + 1 != size):
        raise UsageError(
            f"on {instance.name} a slice is one run that starts at a multiple of the tensor-parallel size {tensor}: "
            f"--cores {format_cores(cores)} is none, {cores[0] // tensor * tensor}-"
            f"{cores[0] // tensor * tensor + size - 1} would be"
        )
    return format_cores(cores)


def _chosen(request: Request, total: int, tensor: int, size: int) -> list[int]:
    if request.cores is not None:
        return parse_cores(request.cores)
    first = request.index * size
    if request.one_machine and request.role == "decode":
        first = (total - (request.index + 1) * size) // tensor * tensor
    return list(range(first, first + size))
