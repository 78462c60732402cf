"""A small OpenAI-compatible endpoint for the benchmark's tests: proxy, engines' metrics and tokenizer in one server.

One word is one token and a message costs `OVERHEAD` more. A turn with reuse reads back everything that the conversation
held after its last reply; the metrics page shows the transfer `lag` scrapes later, as a real engine's does.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "Tiny"
OVERHEAD = 3
BYTES_A_TOKEN = 1000
TRANSFER_SECONDS = 0.004
DESCRIPTORS = 16
FIRST_TOKEN_SECONDS, QUEUE_SECONDS, PREFILL_SECONDS = 0.030, 0.006, 0.020


@dataclass
class Endpoint:
    """The server's settings, and what it saw."""

    url: str = ""
    max_model_len: int | None = 4096
    tokenizer: bool = True
    honours_off: bool = True
    fail_at: tuple[str, int] | None = None  # leg, turn
    status_of_models: int = 200
    diverge: bool = False  # ON replies that are not the OFF replies
    stall: asyncio.Event | None = None  # set: each reply waits for it after its first token
    lag: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    reads: int = 0
    read_tokens: int = 0
    hidden: int = 0
    token: str | None = None
    answered: int = 0
    in_flight: int = 0
    most_in_flight: int = 0

    async def models(self, request: web.Request) -> web.Response:
        listed = {"id": MODEL, "object": "model", "max_model_len": self.max_model_len}
        return web.json_response({"data": [listed]}, status=self.status_of_models)

    async def tokenize(self, request: web.Request) -> web.Response:
        if not self.tokenizer:
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await request.json()
        count = prompt_tokens(body["messages"]) if "messages" in body else len(body["prompt"].split())
        return web.json_response({"count": count})

    async def stats(self, request: web.Request) -> web.Response:
        if request.headers.get("x-neuron-pd-token") != self.token:
            return web.json_response({"error": "no"}, status=401)
        return web.json_response({"turns_read_back_verified": self.reads, "reused_tokens": self.read_tokens, "kv": 7})

    async def info(self, request: web.Request) -> web.Response:
        return web.json_response({"vllm": "0.32.0", "nixl": "1.5.1", "block_size": 16})

    async def metrics(self, request: web.Request) -> web.Response:
        if self.hidden:
            self.hidden -= 1
            return web.Response(text=metrics_page(self.reads - 1, 0, self.answered))
        return web.Response(text=metrics_page(self.reads, self.read_tokens, self.answered))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        off = request.headers.get("X-Neuron-PD-Reuse") == "off"
        self.requests.append({**body, "off": off})
        turn = (len(body["messages"]) + 1) // 2
        if self.fail_at == ("off" if off else "on", turn):
            return web.json_response({"error": {"message": "no prefill\nengine is ready"}}, status=503)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._reply(request, body, off)
        finally:
            self.in_flight -= 1

    async def _reply(self, request: web.Request, body: dict[str, Any], off: bool) -> web.StreamResponse:
        name, prompt = body.get("conversation_id", ""), prompt_tokens(body["messages"])
        reused = 0 if off and self.honours_off else self.held.get(name, 0)
        if reused:
            self.reads, self.read_tokens, self.hidden = self.reads + 1, self.read_tokens + reused, self.lag
        path, reason = ("read_back", "verified") if reused else ("recompute", "reuse_off" if off else "no_lease")
        counts = "; ".join(f"{name}={reused}" for name in ("offered", "verified", "reused"))
        turn = f"path={path}; reason={reason}; prompt={prompt}; {counts}; local=0"
        stream = web.StreamResponse()
        stream.content_type = "text/event-stream"
        prefill = 5 if reused else prompt
        stream.headers["Server-Timing"] = f"acquire;dur=1.5, prefill;dur={prefill}"
        stream.headers["X-Neuron-PD-Turn"] = turn
        await stream.prepare(request)
        words = reply_words(body, off or not self.diverge)
        await self._stream(stream, words, prompt)
        self.held[name] = prompt + len(words)
        self.answered += 1
        return stream

    async def _stream(self, stream: web.StreamResponse, words: list[str], prompt: int) -> None:
        await stream.write(event({"role": "assistant", "content": ""}))
        for index, word in enumerate(words):
            await stream.write(event({"content": word if index == 0 else f" {word}"}))
            if self.stall is not None:
                await self.stall.wait()
        await stream.write(event({"content": ""}, finish="length"))
        usage = {"prompt_tokens": prompt, "completion_tokens": len(words)}
        await stream.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        await stream.write(b"data: [DONE]\n\n")


def prompt_tokens(messages: list[dict[str, str]]) -> int:
    return sum(len((message["content"] or "").split()) + OVERHEAD for message in messages)


def reply_words(body: dict[str, Any], truthful: bool) -> list[str]:
    """A reply that depends on every message; another one when not `truthful`."""
    seed = sum(map(ord, json.dumps(body["messages"])))
    return [f"w{seed + index + (not truthful)}" for index in range(body["max_tokens"])]


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    body = {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def metrics_page(reads: int, tokens: int, answered: int = 0) -> str:
    labels = '{engine="0",model_name="Tiny"}'
    return f"""# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{labels} 0.0
# HELP vllm:nixl_xfer_time_seconds Histogram of transfer duration for NIXL KV Cache transfers.
# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_bucket{{engine="0",le="0.005",model_name="Tiny"}} {reads}
vllm:nixl_xfer_time_seconds_bucket{{engine="0",le="+Inf",model_name="Tiny"}} {reads}
vllm:nixl_xfer_time_seconds_count{labels} {reads}
vllm:nixl_xfer_time_seconds_sum{labels} {reads * TRANSFER_SECONDS}
# HELP vllm:nixl_bytes_transferred Histogram of bytes transferred per NIXL KV Cache transfers.
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_bucket{{engine="0",le="+Inf",model_name="Tiny"}} {reads}
vllm:nixl_bytes_transferred_count{labels} {reads}
vllm:nixl_bytes_transferred_sum{labels} {tokens * BYTES_A_TOKEN}
# HELP vllm:nixl_num_failed_transfers_total Number of failed NIXL KV Cache transfers.
# TYPE vllm:nixl_num_failed_transfers_total counter
vllm:nixl_num_failed_transfers_total{labels} 0.0
# HELP vllm:nixl_num_descriptors Histogram of number of descriptors per NIXL  KV Cache transfers.
# TYPE vllm:nixl_num_descriptors histogram
vllm:nixl_num_descriptors_bucket{{engine="0",le="+Inf",model_name="Tiny"}} {reads}
vllm:nixl_num_descriptors_count{labels} {reads}
vllm:nixl_num_descriptors_sum{labels} {reads * DESCRIPTORS}
{_histogram("vllm:time_to_first_token_seconds", answered, answered * FIRST_TOKEN_SECONDS)}
{_histogram("vllm:request_queue_time_seconds", answered, answered * QUEUE_SECONDS)}
{_histogram("vllm:request_prefill_time_seconds", answered, answered * PREFILL_SECONDS)}
# HELP vllm:nixl_xfer_time_seconds_created Histogram of transfer duration for NIXL KV Cache transfers.
# TYPE vllm:nixl_xfer_time_seconds_created gauge
vllm:nixl_xfer_time_seconds_created{labels} 1.7e+09
"""


def _histogram(name: str, count: int, total: float) -> str:
    labels = 'engine="0",model_name="Tiny"'
    return (
        f"# HELP {name} Histogram.\n# TYPE {name} histogram\n"
        f'{name}_bucket{{{labels},le="+Inf"}} {count}\n{name}_count{{{labels}}} {count}\n{name}_sum{{{labels}}} {total}'
    )


@asynccontextmanager
async def serving(endpoint: Endpoint) -> AsyncIterator[str]:
    """Serve on a free loopback port; yields the base URL."""
    app = web.Application(client_max_size=2**24)
    app.add_routes(
        [
            web.get("/v1/models", endpoint.models),
            web.post("/tokenize", endpoint.tokenize),
            web.get("/neuron_pd/v1/info", endpoint.info),
            web.get("/neuron_pd/v1/stats", endpoint.stats),
            web.get("/metrics", endpoint.metrics),
            web.post("/v1/chat/completions", endpoint.chat),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield endpoint.url
    finally:
        await runner.cleanup()
