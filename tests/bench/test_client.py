import asyncio
from typing import Any

import pytest
from aiohttp import web

from neuron_pd.bench.client import parse_server_timing, parse_turn, session, stream_chat
from neuron_pd.core.transfer import TurnReport

from .endpoint import Endpoint

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 4}


async def test_a_reply_with_its_times_and_headers(endpoint: Endpoint) -> None:
    async with session() as http:
        outcome = await stream_chat(http, endpoint.url, BODY, {"X-Neuron-PD-Reuse": "off"})
    reply = outcome.reply
    assert (outcome.status, outcome.error, reply.finish_reason) == (200, "", "length")
    assert len("".join(reply.content).split()) == 4
    assert reply.usage == {"prompt_tokens": 6, "completion_tokens": 4}
    assert outcome.server_timing == {"acquire": 1.5, "prefill": 6.0}
    assert outcome.report == TurnReport("recompute", "reuse_off", 6, 0, 0, 0, 0)
    assert reply.first_token is not None
    assert outcome.started < reply.first_token <= reply.chunks[-1] <= outcome.ended
    assert len(reply.chunks) == 4 + 4  # role, words, finish, usage, done
    assert endpoint.requests[0]["stream_options"] == {"include_usage": True}


async def test_a_refusal_is_recorded(endpoint: Endpoint) -> None:
    endpoint.fail_at = ("on", 1)
    async with session() as http:
        outcome = await stream_chat(http, endpoint.url, BODY, {})
    assert (outcome.status, outcome.error) == (503, "HTTP 503: no prefill engine is ready")
    assert (outcome.reply.first_token, outcome.report, outcome.server_timing) == (None, None, {})


async def test_no_server_is_recorded(unused_tcp_port: int) -> None:
    async with session() as http:
        outcome = await stream_chat(http, f"http://127.0.0.1:{unused_tcp_port}", BODY, {})
    assert outcome.status == 0
    assert outcome.error.startswith("ClientConnectorError: ")


async def test_silence_ends_in_an_error(endpoint: Endpoint) -> None:
    endpoint.stall = asyncio.Event()
    async with session(read_timeout=0.2) as http:
        outcome = await stream_chat(http, endpoint.url, BODY, {})
    endpoint.stall.set()
    assert "Timeout" in outcome.error
    assert outcome.reply.first_token is not None


@pytest.mark.parametrize("abort", [False, True])
async def test_a_reply_that_breaks_off_is_an_error(abort: bool) -> None:
    async def chat(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n')
        if abort and request.transport is not None:
            request.transport.abort()
        return stream

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", chat)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with session() as http:
        outcome = await stream_chat(http, f"http://127.0.0.1:{runner.addresses[0][1]}", BODY, {})
    await runner.cleanup()
    assert outcome.error
    if not abort:
        assert outcome.error == "the stream ended before the reply did"
        assert outcome.reply.content == ["half"]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("acquire;dur=6.5, prefill;dur=120", {"acquire": 6.5, "prefill": 120.0}),
        ('prefill;desc="P leg";dur="3"', {"prefill": 3.0}),
        ("cache;desc=x,, prefill;dur=soon", {}),
        ("", {}),
    ],
)
def test_server_timing(header: str, expected: dict[str, float]) -> None:
    assert parse_server_timing(header) == expected


def test_turn_header() -> None:
    header = "path=read_back; reason=verified; prompt=900; offered=850; verified=832; reused=832; local=0"
    assert parse_turn(header) == TurnReport("read_back", "verified", 900, 850, 832, 832, 0)
    assert parse_turn(f"{header}; direct=1") == parse_turn(header)


@pytest.mark.parametrize(
    "header", ["", "path=read_back", "path=a; reason=b; prompt=x; offered=1; verified=1; reused=1; local=0"]
)
def test_a_turn_header_that_is_not_whole(header: str) -> None:
    assert parse_turn(header) is None
