"""What the fake engines say: ready-made bytes in the shape of vLLM's answers."""

from typing import Any, NamedTuple

import orjson

from neuron_pd.core.control import EngineInfo
from neuron_pd.core.transfer import TURN

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


class Stream(NamedTuple):
    """A streamed reply: its head, one HTTP chunk an event, and the end with the finish, `[DONE]` and the last chunk."""

    head: bytes
    chunks: tuple[bytes, ...]
    end: bytes

    @property
    def whole(self) -> bytes:
        return self.head + b"".join(self.chunks) + self.end


def streamed(chunks: int) -> Stream:
    """A reply of `chunks` tokens, an event and an HTTP chunk for each, then the finish."""
    tokens = tuple(_chunk(_event({"content": f" word{number}"}, None)) for number in range(chunks))
    finish = _chunk(_event({}, "stop", kv_transfer_params=blocks("decode"))) + _chunk(b"data: [DONE]\n\n")
    return Stream(STREAM_HEAD, tokens, finish + LAST_CHUNK)


def prefilled() -> bytes:
    """P's answer: one token, and where its blocks are."""
    report = {"path": "recompute", "reason": "no_lease", "prompt": 1000, "offered": 0, "verified": 0, "reused": 0}
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}
    params = {"do_remote_prefill": True, "do_remote_decode": False, **blocks("prefill"), TURN: {**report, "local": 0}}
    return json_answer({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "fake",
                        "choices": [choice], "kv_transfer_params": params})  # fmt: skip


def blocks(engine: str) -> dict[str, Any]:
    """Where 1,000 tokens of KV are, in blocks of 16."""
    return {
        "remote_block_ids": [list(range(63))],
        "remote_engine_id": f"{engine}-engine",
        "remote_request_id": f"{engine}-request-0",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": 1000,
        "tp_size": 1,
    }


def info(role: str) -> bytes:
    """What an engine with the neuron-pd connector says of itself."""
    said = EngineInfo(
        version="", vllm="0.32.0", nixl="", torch="", model="fake", role=role, engine_id=role, accelerator="cpu",
        block_size=16, kv_blocks=1000, retention="lease", bidirectional=True, prefix_caching=True,
        kv_recompute_threshold=64, read_lease_seconds=30.0,
    )  # fmt: skip
    return json_answer(said.as_json())


def json_answer(body: Any) -> bytes:
    raw = orjson.dumps(body)
    head = b"HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(raw) + raw


def _event(delta: dict[str, str], finish: str | None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    body = {
        "id": "chatcmpl-4f0e6f9e4d0b4e0c9d0b7b1d2f6a8c11",
        "object": "chat.completion.chunk",
        "created": 1790000000,
        "model": "fake",
        "choices": [choice],
        **more,
    }
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
