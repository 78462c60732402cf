"""What the proxy learns from D's answer as it passes: did it end well, and, where that is asked for, what it said.

The quotes of a reply's own text are escaped, so the pattern of a finish matches the field only.
"""

import re
from itertools import groupby
from typing import Any, Protocol

import orjson

from neuron_pd.proxy.apis import Api, Reply
from neuron_pd.proxy.bodies import json_object

_OVERLAP = 48
# A token's text, without quotes in it.
_TEXT = re.compile(rb'"(?:content|text)":"([^"\\]*(?:\\[^"][^"\\]*)*)"')
BATCH_BYTES = 64 * 1024


class Tap(Protocol):
    """Fed with every chunk of a body."""

    def feed(self, data: bytes) -> None: ...
    def reply(self) -> Reply:
        """What was said, so far as this tap collects it."""


class FinishTap:
    """Looks for the finish only."""

    __slots__ = ("_finish", "_finished", "_tail")

    def __init__(self, api: Api) -> None:
        self._finish = api.finish
        self._finished = False
        self._tail = b""

    def feed(self, data: bytes) -> None:
        if self._finished:
            return
        seam = self._tail + data[:_OVERLAP]
        # A finish is near the end of what came, and many a `null` in its place before it.
        for pattern in self._finish:
            if data.rfind(pattern) >= 0 or pattern in seam:
                self._finished = True
                return
        self._tail = seam[-_OVERLAP:] if len(data) < _OVERLAP else data[-_OVERLAP:]

    def reply(self) -> Reply:
        return Reply(self._finished)


class JsonTap:
    """One JSON answer, read once it is complete."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._raw: list[bytes] = []
        self._reply: Reply | None = None

    def feed(self, data: bytes) -> None:
        self._raw.append(data)

    def reply(self) -> Reply:
        if self._reply is None:
            answer = json_object(b"".join(self._raw))
            self._reply = self._api.whole(answer) if answer else Reply()
        return self._reply


class StreamTap:
    """Server-sent events, read a batch at a time, tokens merged, as one JSON array: ten times cheaper than singly."""

    def __init__(self, api: Api) -> None:
        self._reader = api.reader()
        self._raw: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        self._raw.append(data)
        self._size += len(data)
        if self._size > BATCH_BYTES:
            self._digest()

    def reply(self) -> Reply:
        self._digest()
        return self._reader.reply()

    def _digest(self) -> None:
        """Parse the events that are complete."""
        complete, separator, rest = b"".join(self._raw).rpartition(b"\n\n")
        self._raw, self._size = [rest] if rest else [], 0
        if separator:
            for event in parse_events(merged(complete)):
                self._event(event)

    def _event(self, event: Any) -> None:
        try:
            self._reader.event(event)
        except (KeyError, TypeError, AttributeError):
            return  # an error event: not a part of the reply


def merged(stream: bytes) -> bytes:
    """The same stream with events in a row that differ in their text only as one event with all of their text.

    Readers put texts together, so they learn the same.
    """
    out: list[bytes] = []
    texts: list[bytes] = []
    before = after = b"\n\n"  # begins and ends no event
    start, end, least = 2, -2, 4
    for event in stream.split(b"\n\n"):
        if event.startswith(before) and event.endswith(after) and len(event) >= least:
            texts.append(event[start:end])
            continue
        out += _run(before, texts, after)
        texts = []
        if found := _TEXT.search(event):
            before, after = event[: found.start(1)], event[found.end(1) :]
            start, end, least = len(before), -len(after), len(before) + len(after)
            texts.append(found[1])
        else:
            out.append(event)
    out += _run(before, texts, after)
    return b"\n\n".join(out)


def _run(before: bytes, texts: list[bytes], after: bytes) -> list[bytes]:
    """Events around these texts, as few as can be: what has a quote in it may be more than a text."""
    if not texts:
        return []
    whole = b"".join(texts)
    if b'"' not in whole and (b"\\" not in whole or not any(text.endswith(b"\\") for text in texts)):
        return [before + whole + after]
    out: list[bytes] = []
    for apart, group in groupby(texts, lambda text: b'"' in text or text.endswith(b"\\")):
        out += [before + text + after for text in (group if apart else (b"".join(group),))]
    return out


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
