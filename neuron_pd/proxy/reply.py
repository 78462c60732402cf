"""What the proxy learns from D's answer as it passes: did it end well, and, where that is the identity, its text.

A turn ended well once a `finish_reason` was seen and the body is complete. The quotes of a reply's own text are
escaped, so the pattern matches the field only.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import orjson

FINISH = (b'"finish_reason":"', b'"finish_reason": "')
_OVERLAP = 24
BATCH_BYTES = 64 * 1024


class Tap(Protocol):
    """Fed with every chunk of a body; `reply` is what it said, where that was collected."""

    @property
    def finished(self) -> bool: ...
    def feed(self, data: bytes) -> None: ...
    def reply(self) -> Mapping[str, Any] | str | None: ...


class FinishTap:
    """Looks for the finish only."""

    __slots__ = ("_tail", "finished")

    def __init__(self) -> None:
        self.finished = False
        self._tail = b""

    def feed(self, data: bytes) -> None:
        if self.finished:
            return
        joined = self._tail + data
        self.finished = FINISH[0] in joined or FINISH[1] in joined
        self._tail = joined[-_OVERLAP:]

    def reply(self) -> None:
        return None


class JsonTap:
    """One JSON answer, read once it is complete."""

    def __init__(self) -> None:
        self._raw: list[bytes] = []
        self._read: Mapping[str, Any] | None = None

    @property
    def finished(self) -> bool:
        return isinstance(self._choice().get("finish_reason"), str)

    def feed(self, data: bytes) -> None:
        self._raw.append(data)

    def reply(self) -> Mapping[str, Any] | str | None:
        choice = self._choice()
        message = choice.get("message")
        if isinstance(message, Mapping):
            return {**message, "role": "assistant"}
        text = choice.get("text")
        return text if isinstance(text, str) else None

    def _choice(self) -> Mapping[str, Any]:
        if self._read is None:
            self._read = _first_choice(b"".join(self._raw))
        return self._read


def _first_choice(answer: bytes) -> Mapping[str, Any]:
    try:
        choice = orjson.loads(answer)["choices"][0]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return {}
    return choice if isinstance(choice, Mapping) else {}


class StreamTap:
    """Server-sent events: puts the deltas of the first choice together.

    Events are parsed a batch at a time, as one JSON array: several times cheaper than one by one.
    """

    def __init__(self) -> None:
        self._finished = False
        self._raw: list[bytes] = []
        self._size = 0
        self._content: list[str] = []
        self._text: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}

    @property
    def finished(self) -> bool:
        self._digest()
        return self._finished

    def feed(self, data: bytes) -> None:
        self._raw.append(data)
        self._size += len(data)
        if self._size > BATCH_BYTES:
            self._digest()

    def reply(self) -> Mapping[str, Any] | str | None:
        self._digest()
        if self._text:
            return "".join(self._text)
        calls = [
            {"function": {"name": call["name"], "arguments": call["arguments"]}}
            for _, call in sorted(self._calls.items())
        ]
        return {"role": "assistant", "content": "".join(self._content), "tool_calls": calls}

    def _digest(self) -> None:
        """Parse the events that are complete."""
        complete, separator, rest = b"".join(self._raw).rpartition(b"\n\n")
        self._raw, self._size = [rest] if rest else [], 0
        if separator:
            for event in parse_events(complete):
                self._event(event)

    def _event(self, event: Any) -> None:
        try:
            for choice in event["choices"]:
                self._choice(choice)
        except (KeyError, TypeError, AttributeError):
            return  # an error event: not a part of the reply

    def _choice(self, choice: Mapping[str, Any]) -> None:
        if choice.get("finish_reason") is not None:
            self._finished = True
        if "text" in choice:
            self._text.append(choice["text"])
            return
        delta = choice.get("delta") or {}
        if delta.get("content"):
            self._content.append(delta["content"])
        for call in delta.get("tool_calls") or ():
            self._call(call)

    def _call(self, call: Mapping[str, Any]) -> None:
        known = self._calls.setdefault(call.get("index") or 0, {"name": "", "arguments": ""})
        function = call.get("function") or {}
        known["name"] += function.get("name") or ""
        known["arguments"] += function.get("arguments") or ""


def parse_events(stream: bytes) -> list[Any]:
    """The JSON of each server-sent event in `stream`; what is not JSON (comments, [DONE]) is left out."""
    body = stream.removesuffix(b"\n\ndata: [DONE]")
    if body.startswith(b"data: "):
        try:
            parsed = orjson.loads(b"[" + body[6:].replace(b"\n\ndata: ", b",") + b"]")
        except orjson.JSONDecodeError:
            pass
        else:
            return list(parsed)
    return [event for line in stream.split(b"\n") if (event := _parse_line(line)) is not None]


def _parse_line(line: bytes) -> Any:
    if not line.startswith(b"data:"):
        return None
    try:
        return orjson.loads(line[5:])
    except orjson.JSONDecodeError:
        return None
