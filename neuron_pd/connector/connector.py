"""The connector class that `kv_connector_module_path` loads: upstream's NIXL pull connector with our two sides."""

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.v1.kv_cache_interface import KVCacheConfig

from neuron_pd.connector import compat
from neuron_pd.connector.bases import bases, lease_scheduler, lease_worker
from neuron_pd.connector.memory import Memory
from neuron_pd.connector.scheduler import control
from neuron_pd.connector.stats import LeasePromMetrics, LeaseStats
from neuron_pd.core.control import control_token
from neuron_pd.core.settings import Settings, leave_upstream_a_number


class NixlConnector(NixlPullConnector):
    """NIXL pull transfers in both directions, verified and leased, over whatever memory the engine's KV is in.

    Named as upstream's because vLLM's configuration checks (context-parallel interleave, routed experts, block size)
    look for that name. The constructor's third parameter must be called `kv_cache_config`: vLLM inspects it.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        transfer = vllm_config.kv_transfer_config
        leave_upstream_a_number(transfer.kv_connector_extra_config)
        # Past the pull connector's own constructor: it would make a second NIXL agent.
        super(NixlPullConnector, self).__init__(vllm_config, role, kv_cache_config)
        self.connector_scheduler = None
        self.connector_worker = None
        memory = Memory(vllm_config, kv_cache_config)
        scheduler, worker = bases(vllm_config, kv_cache_config, memory.adapter)
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = lease_scheduler(scheduler)(vllm_config, self.engine_id, kv_cache_config)
            settings = Settings.read(transfer.get_from_extra_config)
            self.connector_scheduler.configure(settings, control_token(), memory.slots)
            compat.install_engine_method(control)
        else:
            self.connector_worker = lease_worker(worker)(memory, self.engine_id)

    def wait_for_save(self) -> None:
        """The step has computed its KV: what peers may read of it is copied to where they read it."""
        assert self.connector_worker is not None
        self.connector_worker.expose_prompts(self._connector_metadata)

    def get_kv_connector_stats(self) -> Any:
        if self.connector_scheduler is not None:
            return self.connector_scheduler.take_stats()
        return super().get_kv_connector_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> LeaseStats:
        return LeaseStats(data=data) if data is not None else LeaseStats()

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> LeasePromMetrics:
        return LeasePromMetrics(*args, **kwargs)
