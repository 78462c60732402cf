"""The two systems that are compared: how each is started, and how each serves one turn.

Both have the same engines with the same flags, P and D with half of the cores each. Ours stands behind the proxy.
Upstream's connector stands behind the loop of the article's router: D's answer to a whole (not streamed) reply says
where its blocks are, and the conversation's next prefill is told. A streamed one says nothing on vLLM 0.29 to 0.32.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ci.trial import MODEL
from neuron_pd.bench.client import REUSE_HEADER, Outcome, aiohttp, stream_chat
from neuron_pd.bench.stream import error_text
from neuron_pd.core.transfer import first_leg
from neuron_pd.launcher.topology import Child, Topology

REPLY_TOKENS = 8
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as its client saw it. Times in milliseconds; 0 where a turn that was not streamed has none."""

    status: int
    text: str = ""
    error: str = ""
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0


class System(Protocol):
    """What is compared. A turn may start from the conversation's KV on D unless `reuse` is false.

    With `cold` it does not either, and no cache of either engine holds anything of its prompt.
    """

    name: str

    async def turn(
        self, messages: Messages, conversation: str, *, reuse: bool = True, stream: bool = False, cold: bool = False
    ) -> Turn: ...


def body_of(messages: Messages, cold: bool) -> dict[str, Any]:
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": REPLY_TOKENS, "ignore_eos": True}
    return {**body, "cache_salt": secrets.token_hex(8)} if cold else body


@dataclass(slots=True)
class Ours:
    """The proxy does it all."""

    http: aiohttp.ClientSession
    proxy: str
    name: str = "ours"

    async def turn(
        self, messages: Messages, conversation: str, *, reuse: bool = True, stream: bool = False, cold: bool = False
    ) -> Turn:
        body = {**body_of(messages, cold), "conversation_id": conversation}
        headers = {REUSE_HEADER: "off"} if cold or not reuse else {}
        found = await stream_chat(self.http, self.proxy, body, headers)
        legs = found.server_timing.get("acquire", 0.0) + found.server_timing.get("prefill", 0.0)
        return _streamed(found, legs, found.started)


@dataclass(slots=True)
class Upstream:
    """The article's router. `handles` holds what D said of each conversation's blocks; each is used once."""

    http: aiohttp.ClientSession
    prefill: str
    decode: str
    name: str = "upstream"
    handles: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def turn(
        self, messages: Messages, conversation: str, *, reuse: bool = True, stream: bool = False, cold: bool = False
    ) -> Turn:
        body, handle = body_of(messages, cold), self.handles.pop(conversation, None)
        started = time.perf_counter()
        first = {**body, "max_tokens": 1, "kv_transfer_params": first_leg(None if cold or not reuse else handle)}
        status, answer = await self._post(self.prefill, first)
        if status != 200:
            return Turn(status, error=error_text(answer))
        legs = (time.perf_counter() - started) * 1000
        second = {**body, "kv_transfer_params": answer["kv_transfer_params"]}
        if stream:
            return _streamed(await stream_chat(self.http, self.decode, second, {}), legs, started)
        status, answer = await self._post(self.decode, second)
        if status != 200:
            return Turn(status, error=error_text(answer))
        if answer.get("kv_transfer_params"):
            self.handles[conversation] = answer["kv_transfer_params"]
        return Turn(status, answer["choices"][0]["message"]["content"], prefill_ms=legs)

    async def _post(self, url: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        async with self.http.post(f"{url}/v1/chat/completions", json=body) as answer:
            return answer.status, await answer.json(content_type=None)


def _streamed(found: Outcome, legs: float, started: float) -> Turn:
    first = found.reply.first_token
    ttft = 0.0 if first is None else (first - started) * 1000
    return Turn(found.status, "".join(found.reply.content), found.error, legs, ttft)


@dataclass(frozen=True, slots=True)
class EnginesAlone:
    """A topology without its proxy, to supervise."""

    topology: Topology

    @property
    def run_dir(self) -> Path:
        return self.topology.run_dir

    def stages(self) -> Sequence[Sequence[Child]]:
        return self.topology.stages()[:1]

    def urls(self) -> Mapping[str, str]:
        return self.topology.urls()

    def token(self) -> str | None:
        return None
