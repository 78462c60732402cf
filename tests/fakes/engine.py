"""A prefill or decode engine made of a real HTTP server: it records requests, and fails in every way it is told to.

It speaks vLLM's APIs (streamed and not) and the control path. D writes a record per handle; a
lease carries the recorded text in place of fingerprints, and P compares it with its own prompt, so that "verified" and
"reused" mean what they mean on real engines, in characters.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self
from uuid import uuid4

import orjson
from aiohttp import web

from neuron_pd.core import control
from neuron_pd.core.transfer import FINGERPRINT, HANDLE, TURN
from tests.fakes import apis
from tests.fakes.apis import JSON, prompt_text


@dataclass
class Recorded:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @cached_property
    def body(self) -> JSON:
        return orjson.loads(self.raw)


@dataclass
class Faults:
    """What goes wrong, on requests that generate. Times in seconds; None and False: nothing."""

    head_delay: float = 0.0
    status: int | None = None
    status_headers: dict[str, str] = field(default_factory=dict)
    status_body: bytes = b'{"error":{"message":"told to","type":"x","param":null,"code":null}}'
    reset: bool = False  # the connection is reset instead of an answer
    hang: bool = False  # no answer ever
    die_after: int | None = None  # reset after so many events of a stream
    die_mid_line: bool = False  # and within a line
    stall_after: int | None = None  # no more events after so many
    no_params: bool = False  # P: no kv_transfer_params in the answer
    times: int | None = None  # the fault goes away after so many requests


class FakeEngine:
    """`async with FakeEngine("decode") as engine:` serves on a loopback port of its own."""

    def __init__(self, role: str, token: str | None = None, tls: ssl.SSLContext | None = None, **info: Any) -> None:
        self.role = role
        self._tls = tls
        self.token = token
        self.info: JSON | None = {**_info(role), **info}
        self.requests: list[Recorded] = []
        self.faults = Faults()
        self.reply = "the reply"
        self.tool_calls: list[JSON] | None = None
        self.events: list[bytes] | None = None  # a whole stream, as written: one write each
        self.answer: bytes | None = None  # a whole JSON answer
        self.models = ["fake"]
        self.pins = False  # D: keep each turn's blocks, and say so in its answer: pin mode, or vLLM's own connector
        self.leak = True  # D: carry kv_transfer_params in answers, as newer engines do
        self.acquire_delay = 0.0
        self.acquire_status: int | None = None
        self.gone_after_acquire = False  # it stops as soon as it has answered
        self.host = "127.0.0.1"
        self.healthy = True
        self.records: dict[str, str] = {}
        self.leases: dict[str, str] = {}
        self.released: list[str] = []
        self.renewed: list[str] = []
        self.cancelled = 0
        self.active = 0
        self.peak = 0
        self.port = 0

    # ---- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, backlog=2048, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def restart(self, forget: bool = True) -> None:
        """Come back on the same port, with or without the records."""
        if forget:
            self.records.clear()
            self.leases.clear()
        await self.start(self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def at(self, path: str) -> list[Recorded]:
        """The requests to one path, in order."""
        return [request for request in self.requests if request.path == path]

    @property
    def asked(self) -> list[Recorded]:
        """The requests but for the proxy's own looks at what this engine is."""
        return [request for request in self.requests if request.path != control.INFO]

    @property
    def generated(self) -> list[Recorded]:
        return [request for request in self.requests if request.path in apis.GENERATE]

    # ---- routes

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        if request.path == "/health":
            return web.Response(status=200 if self.healthy else 503)
        recorded = Recorded(request.method, request.path, {k.lower(): v for k, v in request.headers.items()}, raw)
        self.requests.append(recorded)
        if request.path.startswith(control.PREFIX):
            return await self._control(request, recorded)
        if request.path in apis.GENERATE and request.method == "POST":
            return await self._generate(request, recorded)
        return self._other(request, recorded)

    def _other(self, request: web.Request, recorded: Recorded) -> web.StreamResponse:
        if request.path == "/v1/models":
            data = [{"id": name, "object": "model"} for name in self.models]
            return web.json_response({"object": "list", "data": data})
        if request.path == "/tokenize":
            tokens = [ord(letter) for letter in prompt_text(recorded.body)]
            return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": 1_000_000})
        if request.path == "/v1/teapot":
            return web.Response(status=418, text="short and stout")
        return web.json_response({"path": request.path_qs, "method": request.method, "bytes": len(recorded.raw)})

    async def _control(self, request: web.Request, recorded: Recorded) -> web.StreamResponse:
        if self.info is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        if self.token is not None and request.headers.get(control.TOKEN_HEADER) != self.token:
            return web.json_response({"error": "the control token is missing or wrong"}, status=401)
        if request.path == control.INFO:
            return web.json_response(self.info)
        if request.path == control.STATS:
            return web.json_response({"records": len(self.records), "leases": len(self.leases)})
        if request.path == control.ACQUIRE:
            return await self._acquire(recorded.body["handle"])
        name = recorded.body.get("lease") or recorded.body["handle"]
        if request.path == control.RENEW:
            self.renewed.append(name)
            if name not in self.leases:
                return web.json_response({"reason": control.AcquireMiss.UNKNOWN_HANDLE}, status=404)
            return web.json_response({"renewed": 1, "ttl": 480.0})
        self.released.append(name)
        self.records.pop(name, None)
        return web.json_response({"released": int(self.leases.pop(name, None) is not None)})

    async def _acquire(self, handle: str) -> web.StreamResponse:
        await asyncio.sleep(self.acquire_delay)
        if self.acquire_status is not None:
            return web.json_response({"error": "told to"}, status=self.acquire_status)
        if handle not in self.records:
            return web.json_response({"reason": control.AcquireMiss.UNKNOWN_HANDLE}, status=404)
        lease = f"lease-{uuid4().hex}"
        text = self.leases[lease] = self.records[handle]
        params = {**self._blocks(lease, len(text)), FINGERPRINT: {"text": text}}
        if self.gone_after_acquire:
            self._leaving = asyncio.create_task(self.stop())
        return web.json_response({"kv_transfer_params": params})

    def _blocks(self, request_id: str, tokens: int) -> JSON:
        return {
            "remote_block_ids": [[1, 2, 3]],
            "remote_engine_id": f"{self.role}-engine",
            "remote_request_id": request_id,
            "remote_host": self.host,
            "remote_port": 5600,
            "remote_num_tokens": tokens,
            "tp_size": 1,
        }

    # ---- generation

    async def _generate(self, request: web.Request, recorded: Recorded) -> web.StreamResponse:
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            return await self._generate_or_fail(request, recorded)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.active -= 1

    async def _generate_or_fail(self, request: web.Request, recorded: Recorded) -> web.StreamResponse:
        faults = self._faults()
        await asyncio.sleep(faults.head_delay)
        if faults.hang:
            await asyncio.Event().wait()
        if faults.reset:
            _reset(request)
            await asyncio.Event().wait()
        if faults.status is not None:
            headers = {"content-type": "application/json", **faults.status_headers}
            return web.Response(status=faults.status, headers=headers, body=faults.status_body)
        params = recorded.body.get("kv_transfer_params") or {}
        if params.get("do_remote_decode"):
            return self._prefilled(recorded, faults)
        return await self._decoded(request, recorded, params, faults)

    def _faults(self) -> Faults:
        if self.faults.times is not None:
            if self.faults.times == 0:
                return Faults()
            self.faults.times -= 1
        return self.faults

    def _prefilled(self, recorded: Recorded, faults: Faults) -> web.StreamResponse:
        body, prompt = recorded.body, prompt_text(recorded.body)
        answer = apis.whole(recorded.path, body, "x", True, [])
        if not faults.no_params:
            given = body["kv_transfer_params"]
            answer["kv_transfer_params"] = {
                **self._blocks(f"prefill-{uuid4().hex}", len(prompt)),
                "do_remote_prefill": True,
                "do_remote_decode": False,
                **({TURN: _report(prompt, given)} if self.info is not None else {}),
            }
        return web.json_response(answer)

    async def _decoded(
        self, request: web.Request, recorded: Recorded, params: JSON, faults: Faults
    ) -> web.StreamResponse:
        if recorded.body.get("stream"):
            response = await self._stream(request, recorded, faults)
        elif self.answer is not None:
            response = web.Response(body=self.answer, content_type="application/json")
        else:
            answer = apis.whole(recorded.path, recorded.body, self.reply, False, self.tool_calls or [])
            answer.update(self._said(recorded))
            response = web.json_response(answer)
        if handle := params.get(HANDLE):
            self.records[handle] = prompt_text(recorded.body) + self.reply
        return response

    async def _stream(self, request: web.Request, recorded: Recorded, faults: Faults) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        sent = 0
        async for event in self._events(recorded):
            if sent == faults.die_after:
                if faults.die_mid_line:
                    await response.write(event[: len(event) // 2])
                await asyncio.sleep(0.02)
                _reset(request)
                await asyncio.Event().wait()
            if sent == faults.stall_after:
                await asyncio.Event().wait()
            await response.write(event)
            sent += 1
        await response.write_eof()
        return response

    async def _events(self, recorded: Recorded) -> AsyncIterator[bytes]:
        if self.events is not None:
            for event in self.events:
                yield event
                await asyncio.sleep(0.005)
            return
        said = self._said(recorded)
        for event in apis.events(recorded.path, recorded.body, self.reply, self.tool_calls or [], said):
            yield event

    def _said(self, recorded: Recorded) -> JSON:
        """What D's answer says of its blocks: where it pins, the turn's own; else something that must not leak."""
        given = recorded.body.get("kv_transfer_params")
        if not self.pins or not given:
            return {"kv_transfer_params": self._blocks("decode-secret", 9)} if self.leak else {}
        text, lease = prompt_text(recorded.body) + self.reply, f"pin-{uuid4().hex}"
        self.leases[lease] = text
        params = {**self._blocks(lease, len(text)), "remote_block_ids": [list(range(-(-len(text) // 16)))]}
        if self.info is not None:
            params |= {FINGERPRINT: {"text": text}, HANDLE: given.get(HANDLE, uuid4().hex)}
        return {"kv_transfer_params": params}


def _report(prompt: str, given: JSON) -> JSON:
    """What P says: it reuses the common prefix of the lease and its own prompt."""
    offered = (given.get(FINGERPRINT) or {}).get("text", "")
    common = len(os.path.commonprefix([offered, prompt]))  # noqa: RUF071 - characters are meant
    reused = common if common >= 8 else 0
    reason = "reused" if reused else ("no_lease" if not offered else "no_common_prefix")
    return {
        "path": "read_back" if reused else "recompute",
        "reason": reason,
        "prompt": len(prompt),
        "offered": len(offered),
        "verified": common,
        "reused": reused,
        "local": 0,
    }


def _reset(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _info(role: str) -> JSON:
    return control.EngineInfo(
        version="0.1.0",
        vllm="0.32.0",
        nixl="1.5.0",
        torch="2.13.0",
        model="/models/fake",
        role=role,
        engine_id=f"{role}-engine",
        accelerator="cpu",
        block_size=16,
        kv_blocks=1000,
        retention="lease",
        bidirectional=True,
        prefix_caching=True,
        kv_recompute_threshold=64,
        read_lease_seconds=30.0,
        kv_layout="HND",
    ).as_json()
