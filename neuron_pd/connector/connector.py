"""The connector class that `kv_connector_module_path` loads: upstream's NIXL pull connector with our two sides."""

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.kv_cache_interface import KVCacheConfig

from neuron_pd.connector import compat
from neuron_pd.connector.scheduler import LeaseOnRead, control
from neuron_pd.connector.worker import LeaseWorker
from neuron_pd.core.control import control_token


class LeaseScheduler(LeaseOnRead, NixlPullConnectorScheduler):
    """Lease-on-read over upstream's pull scheduler."""


class NixlConnector(NixlPullConnector):
    """NIXL pull transfers in both directions, verified and leased.

    Named as upstream's because vLLM's configuration checks (context-parallel interleave, routed experts, block size)
    look for that name. The constructor's third parameter must be called `kv_cache_config`: vLLM inspects it.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        compat.require_tested_vllm()
        # Past the pull connector's own constructor: it would make a second NIXL agent.
        super(NixlPullConnector, self).__init__(vllm_config, role, kv_cache_config)
        self.connector_scheduler = None
        self.connector_worker = None
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = LeaseScheduler(vllm_config, self.engine_id, kv_cache_config)
            self.connector_scheduler.configure(control_token())
            compat.install_engine_method(control)
        else:
            self.connector_worker = LeaseWorker(vllm_config, self.engine_id, kv_cache_config)
