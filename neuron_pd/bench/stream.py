"""A streamed chat completion, event by event: SSE framed on bytes, each event stamped with its arrival."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class Events:
    """Cuts a byte stream into the payloads of its `data:` lines; comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that `data` completes. A line ends in LF or CRLF and nothing else: text may hold U+2028."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


@dataclass(slots=True)
class Reply:
    """What a stream said so far."""

    chunks: list[float] = field(default_factory=list)
    first_token: float | None = None
    first_content: float | None = None
    content: list[str] = field(default_factory=list)
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    done: bool = False

    def take(self, payload: bytes, moment: float) -> None:
        """Add one event that arrived at `moment`."""
        self.chunks.append(moment)
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(payload)
        except ValueError:
            self.error = "the stream holds an event that is not JSON"
            return
        if not isinstance(event, dict) or "error" in event:
            self.error = error_text(event)
            return
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
        for choice in event.get("choices") or ():
            self._choice(choice, moment)

    def _choice(self, choice: dict[str, Any], moment: float) -> None:
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        if text:
            self.content.append(text)
            self.first_content = self.first_content or moment
        if self.first_token is None and _holds_token(delta, choice):
            self.first_token = moment
        self.finish_reason = choice.get("finish_reason") or self.finish_reason


def _holds_token(delta: dict[str, Any], choice: dict[str, Any]) -> bool:
    if any(delta.get(name) for name in ("content", "reasoning", "reasoning_content", "tool_calls", "refusal")):
        return True
    # vLLM sends a token whose bytes are not yet a whole character as an empty string; the role announcement is none.
    return delta.get("content") == "" and "role" not in delta and not choice.get("finish_reason")


def error_text(body: Any) -> str:
    """The message of an OpenAI-style error object, on one line; the object itself where it has none."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    text = message if isinstance(message, str) and message else json.dumps(body)
    return " ".join(text.split())[:500]
