"""A pytest plugin for upstream's own scheduler suites: the scheduler that they make is ours.

Ours runs as the article's does, which is what the suites are about: pin retention, and handles without a fingerprint
are read. `ci.upstream_suites` loads it and prepares what the suites expect of their surroundings.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from vllm.config import CacheConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import cleanup_dist_env_and_memory, init_distributed_environment, initialize_model_parallel
from vllm.distributed.kv_transfer.kv_connector.v1 import nixl

from neuron_pd.connector.bases import LeaseScheduler
from neuron_pd.core.settings import Settings

AS_THE_ARTICLE = {"retention": "pin", "unverified": "allow"}


class Scheduler(LeaseScheduler):
    """Ours, made where upstream makes its own."""

    def __init__(self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        given = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.configure(_settings(given), None)

    def __getattr__(self, name: str) -> Any:
        """Some suites make a scheduler without its constructor, and set what upstream's methods need."""
        if name.startswith("__") or "_made_bare" in self.__dict__:
            raise AttributeError(name)
        self._made_bare = True
        given = self.__dict__.copy()
        parallel = SimpleNamespace(tensor_parallel_size=1, decode_context_parallel_size=1, pipeline_parallel_size=1)
        self.vllm_config = SimpleNamespace(cache_config=CacheConfig(), parallel_config=parallel)
        self.is_bidirectional_kv_xfer_enabled, self.block_size, self.engine_id = False, 16, "bare"
        self.side_channel_host, self.side_channel_port = "localhost", 1
        self.configure(_settings({}), None)
        self.__dict__.update(given)
        return getattr(self, name)

    def on_new_request(self, request: Any) -> None:
        _as_an_engine_sends(request, len(self.kv_cache_config.kv_cache_groups))
        super().on_new_request(request)


def _as_an_engine_sends(request: Any, groups: int) -> None:
    """The suites hand off a flat list of blocks and no count, which vLLM's worker would end the engine for."""
    params = request.kv_transfer_params or {}
    blocks = params.get("remote_block_ids")
    if params.get("do_remote_prefill") and blocks and not isinstance(blocks[0], list):
        params["remote_block_ids"] = [list(blocks)] * groups
        params.setdefault("remote_num_tokens", request.num_prompt_tokens)


def _settings(given: dict[str, Any]) -> Settings:
    chosen = {**AS_THE_ARTICLE, **given}
    return Settings.read(chosen.get)


def pytest_configure() -> None:
    for module in (nixl, nixl.connector, nixl.scheduler):
        for name in ("NixlPullConnectorScheduler", "NixlConnectorScheduler"):
            if hasattr(module, name):
                setattr(module, name, Scheduler)
    if importlib.util.find_spec("ray") is None:  # imported by a neighbour of the suites for tests that are not run
        sys.modules["ray"] = ModuleType("ray")


@pytest.fixture
def dist_init(tmp_path: Path) -> Iterator[None]:
    """A process group of one, as upstream's own fixture of this name makes it."""
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{tmp_path / 'rendezvous'}", 0, "gloo")
        initialize_model_parallel(1, 1)
        yield
    cleanup_dist_env_and_memory()
