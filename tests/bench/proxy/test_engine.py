"""The fake engines: requests found whatever way they are cut, answers that a real parser reads."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import h11
import pytest

from neuron_pd.bench.proxy import replies
from neuron_pd.bench.proxy.engine import PACED, Answers, Connection, request_end
from neuron_pd.core.control import ACQUIRE, INFO, EngineInfo
from neuron_pd.core.transfer import TURN, TurnReport


@pytest.mark.parametrize("name", [b"content-length", b"Content-Length", b"CONTENT-LENGTH"])
def test_where_a_request_ends(name: bytes) -> None:
    head = b"POST /v1/x HTTP/1.1\r\nhost: x\r\n" + name + b": 4\r\n\r\n"
    assert request_end(head) == len(head) + 4
    assert request_end(head + b"bodyPOST") == len(head) + 4
    assert request_end(head[:-1]) is None
    assert request_end(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nmore") == 33


def test_the_reply_is_valid_http_with_all_its_events() -> None:
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(replies.streamed(5).whole)
    head = reader.next_event()
    assert isinstance(head, h11.Response)
    body = b""
    while isinstance(event := reader.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    events = [json.loads(part[6:]) for part in body.split(b"\n\n") if part.startswith(b"data: {")]
    assert (
        "".join(event["choices"][0]["delta"].get("content", "") for event in events) == " word0 word1 word2 word3 word4"
    )
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert body.endswith(b"data: [DONE]\n\n")


async def pieces() -> AsyncIterator[bytes]:
    yield b"{}"


async def test_both_roles_answer() -> None:
    loop = asyncio.get_running_loop()
    urls = {}
    servers = []
    for role in ("prefill", "decode"):
        answers = Answers(role, 3, 0.001)
        server = await loop.create_server(lambda answers=answers: Connection(answers), "127.0.0.1", 0)
        servers.append(server)
        urls[role] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with aiohttp.ClientSession() as session:
        for role, url in urls.items():
            async with session.get(url + INFO) as answer:
                assert EngineInfo.from_json(await answer.json()).role == role
            async with session.get(url + "/health") as answer:
                assert answer.status == 200
            async with session.post(url + ACQUIRE, json={"handle": "x"}) as answer:
                assert (answer.status, await answer.json()) == (404, {"reason": "unknown_handle"})
        async with session.post(urls["prefill"] + "/v1/chat/completions", json={}) as answer:
            report = (await answer.json())["kv_transfer_params"][TURN]
            assert TurnReport.from_json(report) is not None
        for body in ({}, {"prompt": PACED.decode()}):
            async with session.post(urls["decode"] + "/v1/chat/completions", json=body) as answer:
                assert (await answer.read()).count(b'"content":" word') == 3
        async with session.post(urls["decode"] + "/v1/chat/completions", data=pieces()) as answer:
            assert answer.status == 411
    for server in servers:
        server.close()
