"""Whose scheduler and worker ours sit on: upstream's, or a platform's own where the model needs it."""

from importlib import import_module
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig

from neuron_pd.buffers import BufferAdapter, BufferFault
from neuron_pd.connector import compat
from neuron_pd.connector.scheduler import LeaseOnRead
from neuron_pd.connector.staging import StagedTransfers
from neuron_pd.connector.worker import LeaseTransfers

logger = init_logger("vllm.neuron_pd")


def bases(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, adapter: BufferAdapter) -> tuple[type, type]:
    """The scheduler and the worker class to extend. BufferFault where a platform's own are needed and not there."""
    own = adapter.own_transfer
    need = compat.needs_own_transfer(vllm_config, kv_cache_config)
    if own is None or need is None:
        return NixlPullConnectorScheduler, NixlPullConnectorWorker
    try:
        module = import_module(own.module)
        found = getattr(module, own.scheduler), getattr(module, own.worker)
    except (ImportError, AttributeError) as error:
        raise BufferFault(
            f"{need} on {adapter.name} needs {own.module}, which cannot be used ({error}): install {own.package} for "
            f"vLLM {compat.VLLM_VERSION}, or serve without it"
        ) from error
    logger.info("neuron-pd: %s: transfers are %s's", need, own.module)
    return found


def lease_scheduler(base: type) -> type[Any]:
    """Lease-on-read and staging over a NIXL scheduler."""
    return type("LeaseScheduler", (LeaseOnRead, StagedTransfers, base), {"__doc__": lease_scheduler.__doc__})


LeaseScheduler = lease_scheduler(NixlPullConnectorScheduler)


def lease_worker(base: type) -> type[Any]:
    """The ends of leases and staging over a NIXL worker."""
    return type("LeaseWorker", (LeaseTransfers, base), {"__doc__": lease_worker.__doc__})
