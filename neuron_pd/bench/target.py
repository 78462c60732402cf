"""The servers that a sweep measures: what they serve, how long a prompt may be, and how their tokenizer counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuron_pd.bench.client import REUSE_HEADER, aiohttp, stream_chat
from neuron_pd.bench.text import Ruler, words
from neuron_pd.errors import EngineError, UsageError

_SAMPLE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Base URLs. Requests go to `proxy`; the engines' own URLs are for their metrics and may be absent."""

    proxy: str
    prefill: str | None = None
    decode: str | None = None

    @property
    def all(self) -> list[str]:
        return [url for url in (self.proxy, self.prefill, self.decode) if url]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as `/v1/models` lists it; `max_model_len` in tokens where the server says so."""

    name: str
    max_model_len: int | None


async def served_model(http: aiohttp.ClientSession, url: str, wanted: str | None) -> ServedModel:
    """The model to ask for: `wanted`, else the first that is served. UsageError when there is none."""
    models = await _models(http, url)
    names = [str(model.get("id")) for model in models]
    if wanted is not None and wanted not in names:
        raise UsageError(f"{url} does not serve {wanted!r}: name one of {', '.join(names)} with --model")
    model = models[names.index(wanted)] if wanted is not None else models[0]
    limit = model.get("max_model_len")
    return ServedModel(str(model["id"]), limit if isinstance(limit, int) else None)


async def _models(http: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    try:
        async with http.get(f"{url}/v1/models", timeout=aiohttp.ClientTimeout(total=30)) as answer:
            status, body = answer.status, await answer.json(content_type=None)
    except (ValueError, aiohttp.InvalidURL):
        raise UsageError(f"{url} is not an OpenAI-compatible server: name the proxy with --url") from None
    except (aiohttp.ClientError, TimeoutError):
        raise UsageError(f"no server answers at {url}: start one with `neuron-pd up`, or name it with --url") from None
    data = body.get("data") if isinstance(body, dict) else None
    models = [model for model in data or () if isinstance(model, dict) and "id" in model]
    if status != 200 or not models:
        raise UsageError(f"{url}/v1/models lists no model (HTTP {status}): wait until {url}/ready answers 200")
    return models


async def ruler(http: aiohttp.ClientSession, endpoints: Endpoints, model: str) -> Ruler:
    """How long text must be to hold a number of tokens: by the servers' `/tokenize`, else from one reply's usage."""
    for url in endpoints.all:
        if (
            tokens := await _tokenize(http, url, {"model": model, "prompt": words("ruler", _SAMPLE_CHARS)})
        ) is not None:
            return await _exact_ruler(http, url, model, tokens)
    return await _estimated_ruler(http, endpoints.proxy, model)


async def _exact_ruler(http: aiohttp.ClientSession, url: str, model: str, sample_tokens: int) -> Ruler:
    async def count(text: str) -> int:
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        if (tokens := await _tokenize(http, url, body)) is None:
            raise EngineError(f"{url}/tokenize stopped answering")
        return tokens

    message = "first question"
    whole = await _tokenize(http, url, {"model": model, "messages": [{"role": "user", "content": message}]})
    overhead = 0 if whole is None else whole - await count(message)
    return Ruler(_SAMPLE_CHARS / max(1, sample_tokens), overhead, count)


async def _tokenize(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> int | None:
    try:
        async with http.post(f"{url}/tokenize", json=body) as answer:
            found = await answer.json(content_type=None) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    count = found.get("count") if isinstance(found, dict) else None
    return count if isinstance(count, int) else None


async def _estimated_ruler(http: aiohttp.ClientSession, url: str, model: str) -> Ruler:
    text = words("ruler", _SAMPLE_CHARS)
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1, "temperature": 0}
    outcome = await stream_chat(http, url, body, {REUSE_HEADER: "off"})
    if outcome.error:
        raise EngineError(f"the first request to {url} failed: {outcome.error}")
    tokens = outcome.reply.usage.get("prompt_tokens")
    return Ruler(len(text) / tokens) if isinstance(tokens, int) and tokens > 0 else Ruler()


def check_room(model: ServedModel, lengths: Sequence[int], later_tokens: int) -> None:
    """UsageError when the longest conversation, `later_tokens` after its first prompt, outgrows the model."""
    longest = max(lengths)
    if model.max_model_len is not None and longest + later_tokens > model.max_model_len:
        raise UsageError(
            f"a conversation that starts at {longest} tokens grows to about {longest + later_tokens}, and {model.name}"
            f" takes {model.max_model_len}: use --lengths up to {max(0, model.max_model_len - later_tokens)},"
            " or fewer --turns"
        )
