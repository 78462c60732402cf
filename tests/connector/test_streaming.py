"""The finish chunk of a stream carries what the engine said of its blocks; every other byte is vLLM's."""

import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from neuron_pd.connector.streaming import carrying_params, install

pytestmark = pytest.mark.vllm

PARAMS = {"remote_block_ids": [[1, 2]], "remote_host": "127.0.0.1", "text": "ü\u2028"}
ASKED = SimpleNamespace(kv_transfer_params={"neuron_pd_handle": "h"})


def chunk(text: str, finish: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return "data: " + json.dumps({"choices": [choice], **more}, separators=(",", ":")) + "\n\n"


def generator(chunks: list[str], *, tuples: bool = False) -> Any:
    """A stream generator of vLLM's shape: a chunk for each of the engine's results, and then the last ones."""

    async def stream(self: Any, request: Any, result_generator: Any, name: str) -> AsyncGenerator[str, None]:
        left = list(chunks)
        async for result in result_generator:
            assert isinstance(result, tuple) == tuples
            yield left.pop(0)
        for last in left:
            yield last

    return stream


async def streamed(wrapped: Any, request: Any, outputs: list[Any]) -> list[str]:
    async def results() -> AsyncGenerator[Any, None]:
        for output in outputs:
            yield output

    return [sent async for sent in wrapped(None, request, result_generator=results(), name="n")]


def outputs(*params: Any) -> list[Any]:
    return [SimpleNamespace(kv_transfer_params=said) for said in params]


async def test_the_finish_chunk_carries_them_and_no_other() -> None:
    chunks = [chunk("a"), chunk('say "finish_reason":"stop"'), chunk("c", "length"), "data: [DONE]\n\n"]
    got = await streamed(carrying_params(generator(chunks)), ASKED, outputs(None, None, PARAMS))
    assert got[:2] == chunks[:2]
    assert json.loads(got[2].removeprefix("data: ")) == {
        **json.loads(chunks[2].removeprefix("data: ")),
        "kv_transfer_params": PARAMS,
    }
    assert got[2].endswith("\n\n")
    assert got[3] == chunks[3]


async def test_completions_give_their_results_in_pairs() -> None:
    pairs = [(0, output) for output in outputs(None, PARAMS)]
    got = await streamed(carrying_params(generator([chunk("a"), chunk("b", "stop")], tuples=True)), ASKED, pairs)
    assert json.loads(got[1].removeprefix("data: "))["kv_transfer_params"] == PARAMS


@pytest.mark.parametrize(
    ("request_params", "said"), [({"neuron_pd_handle": "h"}, None), (None, PARAMS)], ids=["nothing said", "not asked"]
)
async def test_otherwise_not_a_byte_changes(request_params: Any, said: Any) -> None:
    chunks = [chunk("a"), chunk("", "stop"), "data: [DONE]\n\n"]
    request = SimpleNamespace(kv_transfer_params=request_params)
    assert await streamed(carrying_params(generator(chunks)), request, outputs(None, said)) == chunks


async def test_what_a_newer_vllm_says_itself_stays() -> None:
    chunks = [chunk("", "stop", kv_transfer_params={"its": "own"})]
    got = await streamed(carrying_params(generator(chunks)), ASKED, outputs(PARAMS))
    assert json.loads(got[0].removeprefix("data: "))["kv_transfer_params"] == {"its": "own"}


def test_vllm_s_generators_are_wrapped_once() -> None:
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat

    install()
    once = OpenAIServingChat.chat_completion_stream_generator
    install()
    assert OpenAIServingChat.chat_completion_stream_generator is once
