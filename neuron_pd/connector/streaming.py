"""Streamed replies that carry `kv_transfer_params` in their finish chunk, as unstreamed ones do.

vLLM does so from 0.33 on. Before, its API server drops them, and in pin mode a router would not learn where a streamed
turn's blocks are. So the two stream generators are wrapped, in the API server's memory; nothing changes on disk, and
nothing at all for requests without `kv_transfer_params`.
"""

import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import wraps
from typing import Any

from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion

FIELD = "kv_transfer_params"
DATA = "data: "
WRAPPED = "_neuron_pd_wrapped"


def install() -> None:
    """Wrap the generators; once, however often it is called."""
    for serving, name in (
        (OpenAIServingChat, "chat_completion_stream_generator"),
        (OpenAIServingCompletion, "completion_stream_generator"),
    ):
        generator = getattr(serving, name)
        if not hasattr(generator, WRAPPED):
            setattr(serving, name, carrying_params(generator))


def carrying_params(generator: Any) -> Any:
    """A stream generator of vLLM's whose finish chunks carry what the engine said of its blocks."""
    signature = inspect.signature(generator)

    @wraps(generator)
    async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[str, None]:
        call = signature.bind(*args, **kwargs)
        said: list[dict[str, Any]] = []
        if getattr(call.arguments["request"], FIELD, None):
            call.arguments["result_generator"] = _listening(call.arguments["result_generator"], said)
        async with aclosing(generator(*call.args, **call.kwargs)) as chunks:
            async for chunk in chunks:
                yield _with_params(chunk, said[-1]) if said else chunk

    setattr(stream, WRAPPED, True)
    return stream


async def _listening(results: AsyncIterator[Any], said: list[dict[str, Any]]) -> AsyncGenerator[Any, None]:
    async for result in results:
        output = result[1] if isinstance(result, tuple) else result
        if output.kv_transfer_params:
            said.append(output.kv_transfer_params)
        yield result


def _with_params(chunk: str, params: dict[str, Any]) -> str:
    """Only a chunk that finishes a choice: an extra one, or one without choices, breaks clients."""
    if '"finish_reason":"' not in chunk.replace(": ", ":") or not chunk.startswith(DATA):
        return chunk
    body = json.loads(chunk.removeprefix(DATA))
    if not body.get(FIELD):
        body[FIELD] = params
    return f"{DATA}{json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"
