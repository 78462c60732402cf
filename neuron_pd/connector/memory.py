"""Which memory this engine's KV is in and what NIXL is to make of it, from vLLM's configuration.

Settings in `kv_connector_extra_config`: `buffer` ("auto", an adapter's name, or "staged"), `staging_bytes`,
`backends` and `backend_parameters`. The environment variables NEURON_PD_BUFFER and NEURON_PD_BACKENDS (with commas) win
over the first and the third, for engines whose command line is someone else's. The scheduler and every worker come to
the same answer by themselves.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import KVCacheConfig

from neuron_pd.buffers import BufferAdapter, BufferFault
from neuron_pd.buffers.choose import STAGED, choose, is_staged, slots_for
from neuron_pd.buffers.staged import StagedAdapter
from neuron_pd.connector import compat
from neuron_pd.core.settings import BACKENDS_ENV, BUFFER_ENV, KEYS


@dataclass(frozen=True)
class Memory:
    """The settings of one engine. BufferFault from its properties for settings that cannot work."""

    vllm_config: VllmConfig
    kv_cache_config: KVCacheConfig

    def setting(self, name: str) -> Any:
        """One of `KEYS`, its default where it is not given."""
        return self.vllm_config.kv_transfer_config.get_from_extra_config(name, KEYS[name].default)

    @property
    def wanted(self) -> str:
        return os.environ.get(BUFFER_ENV) or str(self.setting("buffer"))

    @cached_property
    def slots(self) -> int | None:
        """Blocks that the staging buffer holds; None where NIXL registers the engine's own memory."""
        device = self.vllm_config.kv_transfer_config.kv_buffer_device
        if not is_staged(self.wanted, current_platform.device_type, device):
            return None
        self._require_stageable()
        size = int(self.setting("staging_bytes"))
        return slots_for(self.kv_cache_config.num_blocks, compat.block_bytes(self.kv_cache_config), size)

    def _require_stageable(self) -> None:
        parallel = self.vllm_config.parallel_config
        reasons = {
            "a model with running state (Mamba)": compat.has_state_layers(self.kv_cache_config),
            "decode-context parallelism": parallel.decode_context_parallel_size > 1,
            "pipeline parallelism": parallel.pipeline_parallel_size > 1,
            '"retention": "pin"': self.setting("retention") == "pin",
        }
        if reason := next((name for name, holds in reasons.items() if holds), None):
            raise BufferFault(f'a staging buffer does not serve {reason}: leave it out, or set "buffer": "auto"')

    @cached_property
    def adapter(self) -> BufferAdapter:
        """The adapter of this process."""
        device = choose(self.wanted, current_platform.device_type)
        if self.slots is not None:
            return StagedAdapter(device, self.kv_cache_config.num_blocks, self.slots)
        asked = self.vllm_config.kv_transfer_config.kv_buffer_device
        if device.on_device and asked == "cpu":
            raise BufferFault(
                f'kv_buffer_device "cpu" goes with "buffer": "{STAGED}", and this engine\'s is "{device.name}": '
                'set kv_buffer_device to "cuda", which is vLLM\'s word for memory of the device'
            )
        return device

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """NIXL's backends, also written where upstream's worker looks for them."""
        environment = os.environ.get(BACKENDS_ENV)
        found = self.adapter.backends(environment.split(",") if environment else self.setting("backends"))
        self.vllm_config.kv_transfer_config.kv_connector_extra_config["backends"] = list(found)
        return found

    def parameters(self) -> dict[str, Mapping[str, str]]:
        """What each backend is created with; a person's word wins over the adapter's."""
        given = self.setting("backend_parameters") or {}
        found = {name: {**self.adapter.parameters(name), **given.get(name, {})} for name in self.backends}
        return {name: parameters for name, parameters in found.items() if parameters}

    def seen(self) -> KVCacheConfig:
        """The caches as NIXL sees them: with as many blocks as it can reach."""
        return self.kv_cache_config if self.slots is None else compat.with_blocks(self.kv_cache_config, self.slots)
