"""A real vLLM scheduler with our connector, and a worker that the test plays: a step reports what the test says."""

import json
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from neuron_pd.connector.scheduler import control
from neuron_pd.connector.side_channel import Granted, Peer
from neuron_pd.core.lease import Refused

BLOCK_SIZE = 16
ENCODER_TOKENS = 1000
REPORTED = {field.name for field in fields(KVConnectorOutput)}  # 0.29 has no `failed_recving`
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


def model_directory(path: Path) -> Path:
    """A directory that holds a configuration and no weights: enough for a scheduler."""
    (path / "config.json").write_text(json.dumps(QWEN3))
    return path


class DirectClient:
    """Asks the D that a lease names, where there is one in this process, without a socket."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def _ask(self, verb: str, peer: Peer, lease: str, reader: str) -> dict[str, Any]:
        self.asked.append((verb, lease))
        if (engine := Engine.listening.get(peer)) is None:
            return {}
        answer: dict[str, Any] = engine.connector.retention.answer({"verb": verb, "lease": lease, "reader": reader})
        return answer

    def claim(self, peer: Peer, lease: str, reader: str) -> "Future[Granted | Refused]":
        future: Future[Granted | Refused] = Future()
        answer = self._ask("claim", peer, lease, reader)
        if "deadline" in answer:
            future.set_result(Granted(answer["deadline"], time.perf_counter() + answer["seconds"]))
        else:
            future.set_result(Refused(answer.get("refused", Refused.GONE)))
        return future

    def release(self, peer: Peer, lease: str, reader: str) -> None:
        self._ask("release", peer, lease, reader)

    def close(self) -> None:
        return None


class Engine:
    """One engine's scheduler, `kv_blocks` blocks of 16 tokens, and the verbs of its control path.

    Its worker reports by itself what it was told to give back; everything else the test reports.
    """

    listening: ClassVar[dict[Peer, "Engine"]] = {}

    def __init__(self, model: Path, role: str, *, kv_blocks: int = 64, window: int = 0, **extra: Any) -> None:
        prefix_caching = extra.pop("prefix_caching", role == "decode")
        self.name = extra.pop("engine_id", f"{role}-engine")
        self.scheduler = self._scheduler(model, role, kv_blocks, window, prefix_caching, extra)
        # A text model has no budget for images; their encoder is played with the rest of the worker.
        self.scheduler.max_num_encoder_input_tokens = ENCODER_TOKENS
        self.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=ENCODER_TOKENS)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self._steps = 0
        self.connector = self.scheduler.connector.connector_scheduler
        port = self.connector.side_channel_port = 10_000 + len(self.listening)
        self.connector.retention.address["remote_port"] = port
        self.listening[Peer(self.connector.side_channel_host, self.connector.side_channel_port)] = self
        self.client = self.connector.reuse.client = DirectClient()
        self.finished: dict[str, dict[str, Any] | None] = {}

    def _scheduler(
        self, model: Path, role: str, kv_blocks: int, window: int, prefix_caching: bool, extra: dict[str, Any]
    ) -> Scheduler:
        cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=prefix_caching)
        cache.num_gpu_blocks = kv_blocks
        config = VllmConfig(
            model_config=ModelConfig(model=str(model), skip_tokenizer_init=True, dtype="float32", seed=0),
            cache_config=cache,
            scheduler_config=SchedulerConfig(
                max_num_seqs=8,
                max_num_batched_tokens=4096,
                max_model_len=4096,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=False,
                disable_hybrid_kv_cache_manager=False,
            ),
            parallel_config=ParallelConfig(),
            device_config=DeviceConfig(device="cpu"),
            kv_transfer_config=KVTransferConfig(
                kv_connector="NixlConnector",
                kv_connector_module_path="neuron_pd.connector.connector",
                kv_role="kv_consumer" if role == "decode" else "kv_producer",
                kv_buffer_device="cpu",
                kv_load_failure_policy="recompute",
                engine_id=self.name,
                kv_connector_extra_config={"backends": ["UCX"], "bidirectional_kv_xfer": True, **extra},
            ),
        )
        shape = {"block_size": BLOCK_SIZE, "num_kv_heads": 1, "head_size": 32, "dtype": config.model_config.dtype}
        spec = SlidingWindowSpec(**shape, sliding_window=window) if window else FullAttentionSpec(**shape)
        caches = KVCacheConfig(kv_blocks, [], [KVCacheGroupSpec(["layer.0"], spec)])
        return Scheduler(
            vllm_config=config,
            kv_cache_config=caches,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            log_stats=False,
        )

    def add(
        self,
        name: str,
        tokens: Iterable[int],
        params: dict[str, Any] | None,
        *,
        max_tokens: int = 1,
        images: Sequence[MultiModalFeatureSpec] = (),
    ) -> Request:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args={"kv_transfer_params": params})
        features = list(images) or None
        request = Request(name, list(tokens), sampling, None, mm_features=features, block_hasher=self._hasher)
        self.scheduler.add_request(request)
        return request

    def step(self, **worker: Any) -> None:
        """One scheduler step; `worker` is what the worker reports of transfers. Step k samples token 500 + k."""
        output = self.scheduler.schedule()
        self.metadata = output.kv_connector_metadata
        scheduled = list(output.num_scheduled_tokens)
        self._steps += 1
        sampled = [[500 + self._steps] if self._done_with_prompt(name) else [] for name in scheduled]
        result = ModelRunnerOutput(scheduled, {name: i for i, name in enumerate(scheduled)}, sampled)
        told = {name: value for name, value in worker.items() if name in REPORTED}
        result.kv_connector_output = KVConnectorOutput(**told) if told else None
        outputs = self.scheduler.update_from_output(output, result)
        for item in (item for group in outputs.values() for item in group.outputs):
            if item.finish_reason is not None:
                self.finished[item.request_id] = item.kv_transfer_params

    def _done_with_prompt(self, name: str) -> bool:
        request = self.scheduler.requests[name]
        return request.num_computed_tokens >= request.num_prompt_tokens

    def run(self, name: str) -> dict[str, Any] | None:
        """Step until `name` has finished; its transfer parameters."""
        for _ in range(200):
            if name in self.finished:
                return self.finished[name]
            self.step()
        raise AssertionError(f"{name} never finished")

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def control(self, verb: str, argument: str = "") -> Any:
        return control(self.scheduler, verb, argument)

    def stats(self) -> dict[str, float]:
        answer: dict[str, float] = self.control("stats")
        return answer

    def turn(
        self, handle: str, tokens: Iterable[int], max_tokens: int = 8, images: Sequence[MultiModalFeatureSpec] = ()
    ) -> list[int]:
        """A whole turn on a decode engine (which prefills it itself), recorded under `handle`: all its tokens."""
        params = {"neuron_pd_handle": handle}
        request = self.add(f"request-{handle}", tokens, params, max_tokens=max_tokens, images=images)
        self.run(request.request_id)
        return list(request.all_token_ids)
