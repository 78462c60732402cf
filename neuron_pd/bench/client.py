"""The load client: one streamed chat completion with raw timestamps. What goes wrong is recorded, not raised."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_pd.bench.stream import Events, Reply, error_text
from neuron_pd.core.transfer import TurnReport
from neuron_pd.errors import MissingDependency

try:
    import aiohttp as aiohttp
except ImportError as error:
    raise MissingDependency(f"the benchmark needs {error.name}: pip install 'neuron-pd[bench]'") from error

REUSE_HEADER = "X-Neuron-PD-Reuse"
TURN_HEADER = "X-Neuron-PD-Turn"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: what the stream said, when it began and ended, and the headers that say how it was served.

    `started`, `head` (when the headers came) and `ended` are of the monotonic clock, in seconds.
    """

    started_at: float
    started: float
    ended: float
    reply: Reply
    status: int
    error: str
    server_timing: dict[str, float]
    report: TurnReport | None
    head: float | None = None


def session(read_timeout: float = 600.0) -> aiohttp.ClientSession:
    """A client session. `read_timeout`: seconds without a byte after which a request counts as failed."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=read_timeout)
    return aiohttp.ClientSession(timeout=timeout)


async def stream_chat(
    http: aiohttp.ClientSession, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> Outcome:
    """Send one chat completion to `url`, read its stream to the end, and time it. `body` gets the streaming options."""
    payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    headers = {**headers, "Content-Type": "application/json"}
    reply, status, error, answered, head = Reply(), 0, "", {}, None
    started_at, started = time.time(), time.perf_counter()
    try:
        async with http.post(f"{url}/v1/chat/completions", data=payload, headers=headers) as answer:
            status, answered, head = answer.status, dict(answer.headers.items()), time.perf_counter()
            if status == 200:
                await _read(answer, reply)
            else:
                error = f"HTTP {status}: {_refusal(await answer.read())}"
    except (aiohttp.ClientError, TimeoutError) as failure:
        error = f"{type(failure).__name__}: {failure}".rstrip(": ")
    lowered = {name.lower(): value for name, value in answered.items()}
    return Outcome(
        started_at=started_at,
        started=started,
        ended=time.perf_counter(),
        reply=reply,
        status=status,
        error=error or reply.error or _early_end(reply),
        server_timing=parse_server_timing(lowered.get("server-timing", "")),
        report=parse_turn(lowered.get(TURN_HEADER.lower(), "")),
        head=head,
    )


async def _read(answer: aiohttp.ClientResponse, reply: Reply) -> None:
    events = Events()
    async for data in answer.content.iter_any():
        moment = time.perf_counter()
        for payload in events.feed(data):
            reply.take(payload, moment)


def _refusal(body: bytes) -> str:
    try:
        return error_text(json.loads(body))
    except ValueError:
        return " ".join(body.decode(errors="replace").split())[:500]


def _early_end(reply: Reply) -> str:
    if reply.done and reply.finish_reason:
        return ""
    return "the stream ended before the reply did"


def parse_server_timing(header: str) -> dict[str, float]:
    """`Server-Timing` (W3C): the duration in milliseconds of each metric that has one."""
    found = {}
    for metric in header.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "dur" and (duration := _number(value)) is not None:
                found[name] = duration
    return found


def _number(text: str) -> float | None:
    try:
        return float(text.strip().strip('"'))
    except ValueError:
        return None


def parse_turn(header: str) -> TurnReport | None:
    """`X-Neuron-PD-Turn`: the prefill engine's report of the turn; None where the header is absent or not whole."""
    pairs = (part.partition("=") for part in header.split(";"))
    found: dict[str, str] = {name.strip(): value.strip() for name, _, value in pairs}
    counts = ("prompt", "offered", "verified", "reused", "local")
    try:
        return TurnReport(found["path"], found["reason"], *(int(found[name]) for name in counts))
    except (KeyError, ValueError):
        return None
