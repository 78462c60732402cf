"""`neuron-ls -j`: the Neuron devices of a machine.

The tool prints a JSON array, an object for each device. Keys come and go with SDK releases and types vary, so all but
the device's number is optional: a Trn1 has no `logical_neuroncore_config`, `numa_node` is text, `connected_to` may be
null, `bdf` comes with or without its domain, and SDK 2.32 adds `instance_type`.
"""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NeuronDevice:
    """One device. `cores` counts logical cores, `memory` is HBM in bytes; 0 and "" where the tool does not say."""

    index: int
    bdf: str = ""
    cores: int = 0
    logical_core_size: int = 1
    memory: int = 0
    instance_type: str = ""
    pids: tuple[int, ...] = ()


def parse_neuron_ls(text: str) -> list[NeuronDevice]:
    """The devices, by number. ValueError when the text is not what the tool prints."""
    body = json.loads(text)
    if not isinstance(body, list):
        raise ValueError("neuron-ls printed something other than a list of devices")
    return sorted((_device(entry) for entry in body if isinstance(entry, dict)), key=lambda device: device.index)


def _device(entry: dict[str, Any]) -> NeuronDevice:
    size = _number(entry.get("logical_neuroncore_config")) or 1
    bdf = str(entry.get("bdf") or "")
    processes = entry.get("neuron_processes") or []
    return NeuronDevice(
        index=int(entry["neuron_device"]),
        bdf=bdf if bdf.count(":") != 1 else f"0000:{bdf}",
        cores=len(entry.get("neuroncore_ids") or []) or _number(entry.get("nc_count")),
        logical_core_size=size,
        memory=_number(entry.get("memory_size")),
        instance_type=str(entry.get("instance_type") or ""),
        pids=tuple(_number(process.get("pid")) for process in processes if isinstance(process, dict)),
    )


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0
