"""Every touch of a vLLM internal that is not a subclassed method, and the versions that it was tested on.

vLLM promises nothing about these. Outside the tested range the connector refuses to start and says so (release.py),
because a wrong guess here would be a wrong answer there.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import vllm
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.utils import yield_req_data
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_scheduler, base_worker
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.request import Request, RequestStatus

from neuron_pd.core.fingerprint import Item

ENGINE_METHOD = "neuron_pd_control"
ENGINE_TIMEOUT_SECONDS = 10.0
VLLM_VERSION: str = vllm.__version__


@contextmanager
def agents_without_progress_thread() -> Iterator[None]:
    """NIXL agents that upstream's worker makes in the block have none; vLLM has no setting for it."""
    ordinary = base_worker.nixl_agent_config
    base_worker.nixl_agent_config = partial(ordinary, enable_prog_thread=False)
    try:
        yield
    finally:
        base_worker.nixl_agent_config = ordinary


@contextmanager
def agents_with(parameters: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """NIXL agents that upstream's worker makes in the block create these backends with these parameters."""
    ordinary = base_worker.NixlWrapper

    def agent(name: str, config: Any) -> Any:
        plain = [backend for backend in config.backends if backend not in parameters]
        tuned = [backend for backend in config.backends if backend in parameters]
        config.backends = plain
        made = ordinary(name, config)
        for backend in tuned:
            made.create_backend(backend, dict(parameters[backend]))
        return made

    base_worker.NixlWrapper = agent if parameters else ordinary
    try:
        yield
    finally:
        base_worker.NixlWrapper = ordinary


@contextmanager
def side_channel(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """The listening socket that upstream's scheduler opens in the block is wrapped; vLLM has no hook for it."""
    ordinary = base_scheduler.zmq_ctx
    base_scheduler.zmq_ctx = lambda *args: wrap(ordinary(*args))
    try:
        yield
    finally:
        base_scheduler.zmq_ctx = ordinary


def distribution_version(*names: str) -> str:
    """The version of the first of `names` that is installed, or "unknown"."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def install_engine_method(control: Callable[[Any, str, str], Any]) -> None:
    """Let API servers call `control(scheduler, verb, argument)` on the engine's own thread.

    `call_utility` runs any method of EngineCore there, also when the engine is idle; so this adds one method, and the
    scheduler and its block pool are touched by one thread only.
    """

    def neuron_pd_control(core: EngineCore, verb: str, argument: str) -> Any:
        return control(core.scheduler, verb, argument)

    setattr(EngineCore, ENGINE_METHOD, neuron_pd_control)


async def call_engines(engine_client: Any, verb: str, argument: str) -> list[Any]:
    """Call every engine (data-parallel rank) of this API server; their answers in rank order."""
    client = engine_client.engine_core
    # call_utility_async answers for the first rank only; call_utility_all_async came with 0.32.
    calls = [client._call_utility_async(ENGINE_METHOD, verb, argument, engine=rank) for rank in client.core_engines]
    answers: list[Any] = await asyncio.wait_for(asyncio.gather(*calls), ENGINE_TIMEOUT_SECONDS)
    return answers


def kv_cache_layout(vllm_config: VllmConfig) -> str:
    """The layout of the KV cache as the engine resolved it; "" before that."""
    return vllm_config.cache_config.kv_cache_layout or ""


def transfer_tp_size(scheduler: Any) -> int:
    """The ranks that a peer reads from; 0.29 knows tensor parallelism only."""
    size: int = getattr(scheduler, "transfer_tp_size", scheduler.vllm_config.parallel_config.tensor_parallel_size)
    return size


def failed_reads(connector_output: Any) -> set[str]:
    """Requests whose read failed. 0.29 names the blocks alone: then all that came in with them are taken to have."""
    if hasattr(connector_output, "failed_recving"):
        return set(connector_output.failed_recving or ())
    return set(connector_output.finished_recving or ()) if connector_output.invalid_block_ids else set()


def block_pool(scheduler: Any) -> BlockPool:
    """The block pool of vLLM's scheduler."""
    return scheduler.kv_cache_manager.block_pool


def has_one_full_attention_group(kv_cache_config: KVCacheConfig) -> bool:
    """Whether block i holds exactly tokens i·block_size … of every layer (MLA is full attention too)."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return False
    spec = groups[0].kv_cache_spec
    return isinstance(spec, FullAttentionSpec) and not spec.sliding_window and not spec.attention_chunk_size


def cached_prefix(pool: BlockPool, hashes: Sequence[bytes]) -> list[KVCacheBlock]:
    """The blocks of the longest leading run of `hashes` that is still in the prefix cache."""
    blocks = []
    for block_hash in hashes:
        if (found := pool.get_cached_block(block_hash, [0])) is None:
            break
        blocks.append(found[0])
    return blocks


def computed_tokens(request: Request) -> int:
    """How many leading tokens of a finished or aborted request certainly have their KV in its blocks.

    The last sampled token was never fed back, and `num_computed_tokens` counts steps that may still be in flight.
    """
    if request.num_output_tokens == 0:
        return 0
    return min(request.num_computed_tokens - request.num_in_flight_tokens, request.num_tokens - 1)


def ran_to_its_end(request: Request) -> bool:
    """Not aborted, and not refused."""
    return request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


def is_verifiable(request: Request) -> bool:
    """Whether token ids, with adapter, salt and the hashes of what is not text, determine this request's KV."""
    known = all(feature.mm_hash or feature.identifier for feature in request.mm_features)
    return request.prompt_embeds is None and request.prompt_token_ids is not None and known


def items(request: Request) -> list[Item]:
    """The images, sounds … of a prompt, by their content hashes."""
    return [Item(f.mm_position.offset, f"{f.modality} {f.mm_hash or f.identifier}") for f in request.mm_features]


def bytes_per_token(kv_cache_config: KVCacheConfig) -> float:
    """KV bytes of one token in all layers of one rank."""
    return sum(
        group.kv_cache_spec.page_size_bytes * len(group.layer_names) / group.kv_cache_spec.block_size
        for group in kv_cache_config.kv_cache_groups
    )


def scheduled_blocks(scheduler_output: Any) -> Iterator[tuple[str, Sequence[Sequence[int]] | None, bool]]:
    """For each request of a step: its name, its new blocks by cache group, and whether they are all of its blocks."""
    new = {request.req_id for request in scheduler_output.scheduled_new_reqs}
    for name, blocks, resumed in yield_req_data(scheduler_output):
        yield name, blocks, resumed or name in new


def block_bytes(kv_cache_config: KVCacheConfig) -> int:
    """Bytes of one block in every layer that it can be used for."""
    return max(_group_bytes(group) for group in kv_cache_config.kv_cache_groups)


def _group_bytes(group: KVCacheGroupSpec) -> int:
    spec = group.kv_cache_spec
    # A uniform group's size is that of all its layers already.
    return spec.page_size_bytes * (1 if isinstance(spec, UniformTypeKVCacheSpecs) else len(group.layer_names))


def needs_own_transfer(vllm_config: Any, kv_cache_config: KVCacheConfig) -> str | None:
    """What this model asks of transfers that a platform may do in its own way; None where nothing does."""
    if vllm_config.parallel_config.decode_context_parallel_size > 1:
        return "decode-context parallelism"
    specs = [spec for group in kv_cache_config.kv_cache_groups for spec in _specs(group)]
    return "a sliding window" if any(isinstance(spec, SlidingWindowSpec) for spec in specs) else None


def has_state_layers(kv_cache_config: KVCacheConfig) -> bool:
    """Whether some layer keeps a running state in place of a token's KV."""
    return any(isinstance(spec, MambaSpec) for group in kv_cache_config.kv_cache_groups for spec in _specs(group))


def _specs(group: KVCacheGroupSpec) -> Iterator[Any]:
    spec = group.kv_cache_spec
    yield from spec.kv_cache_specs.values() if isinstance(spec, UniformTypeKVCacheSpecs) else (spec,)


def with_blocks(kv_cache_config: KVCacheConfig, blocks: int) -> KVCacheConfig:
    """The same caches with another number of blocks."""
    return replace(kv_cache_config, num_blocks=blocks)


def fail_read(worker: Any, request_id: str) -> None:
    """Report a queued read as failed, without trying it: its tokens are recomputed."""
    if hasattr(worker, "_recv_failures"):
        worker._handle_failed_transfer(request_id, None, worker._recv_failures, record_failed_transfer=False)
    else:  # 0.29 keeps no list of them
        worker._handle_failed_transfer(request_id, None)
