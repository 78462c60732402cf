"""Instance profiles: what a kind of machine is, and what an engine on it needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from neuron_pd.profiles.schema import (
    build,
    check_placeholders,
    count,
    key,
    mapping_of,
    nested,
    one_of,
    text,
    texts,
    whole,
    yes_or_no,
)
from neuron_pd.profiles.settings import Settings

ROLES: Final = ("prefill", "decode")
ACCELERATORS: Final = ("cpu", "cuda", "neuron", "neuron-nxd")
PLACEHOLDERS: Final = frozenset(
    ("python", "model", "side_channel_host", "side_channel_port", "kv_cache_gib", "cores", "core_count")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransfer:
    """`--kv-transfer-config`: where vLLM keeps transferred KV, and NIXL's backends."""

    buffer_device: str = key(text, "`kv_buffer_device`: where vLLM keeps transferred KV; cuda means device memory")
    backends: tuple[str, ...] = key(texts, "NIXL's backends")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A machine's accelerators and network. A core is what NEURON_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES counts."""

    chip: str = key(text, "the accelerator, as nvidia-smi or Neuron's documentation names it")
    devices: int = key(whole, "accelerators")
    cores: int = key(whole, "logical NeuronCores, or GPUs, in all")
    hbm_gib: int = key(whole, "memory of one accelerator, GiB")
    efa: int = key(count, "EFA devices")
    efa_gbps: int = key(count, "of one EFA device, Gbit/s", 0)
    host_gib: int = key(count, "the machine's memory, GiB; 0 where it is not known", 0)
    registers_hbm: bool = key(yes_or_no, "false: accelerator memory cannot be registered with EFA", True)
    aligned_slices: bool = key(yes_or_no, "true: a slice of cores starts at a multiple of its size of TP", False)

    @property
    def core_hbm(self) -> float:
        """GiB that one core has."""
        return self.hbm_gib * self.devices / self.cores

    def devices_of(self, cores: list[int]) -> list[int]:
        """The accelerators that these cores are on."""
        return sorted({core * self.devices // self.cores for core in cores})


@dataclass(frozen=True, slots=True, kw_only=True)
class Role(Settings):
    """A role's ports, and the settings that win for it."""

    port: int = key(whole, "the API's port")
    side_channel_port: int = key(whole, "NIXL's side channel")
    shared_side_channel_port: int | None = key(whole, "the same where both roles are on one machine", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One kind of instance."""

    name: str = key(text, "the instance type")
    description: str = key(text, "one line")
    accelerator: str = key(one_of(*ACCELERATORS), "cpu, cuda, neuron (vLLM Neuron plugin) or neuron-nxd (NxD stack)")
    command: tuple[str, ...] = key(texts, "the server's command line up to the first flag")
    image: str = key(text, "container image for docker and k8s", "")
    kv_transfer: KVTransfer = key(nested(KVTransfer), "see below")
    hardware: Hardware | None = key(nested(Hardware), "see below; without it nothing is checked against it", None)
    defaults: Settings = key(nested(Settings), "settings of both roles, where a model's profile says nothing else")
    roles: Mapping[str, Role] = key(mapping_of(nested(Role), ROLES), "prefill, decode: ports, and settings that win")
    notes: tuple[str, ...] = key(texts, "lines that `launch` prints beside the command", ())
    sources: Mapping[str, str] = key(mapping_of(text), "dotted key to where its value comes from", {})

    def settings(self, role: str) -> Settings:
        return self.roles[role].over(self.defaults)

    @property
    def is_neuron(self) -> bool:
        return self.accelerator.startswith("neuron")


def parse_instance(body: Any, where: str) -> Instance:
    """Check and read a profile. UsageError naming the file, the key and what is wrong with it."""
    instance = build(Instance, body, where)
    settings = [instance.defaults, *instance.roles.values()]
    filled = [value for item in settings for value in (*item.environment.values(), *map(str, item.flags.values()))]
    check_placeholders([*instance.command, *filled], PLACEHOLDERS, where)
    return instance
