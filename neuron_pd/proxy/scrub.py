"""Taking `kv_transfer_params` out of an engine's bytes, as they stream, whatever way they are cut.

Block ids and addresses never reach a client. The work is on bytes, never on lines of text, so U+2028 and the like stay
intact, and nothing is held back but what may be part of the field: untouched chunks pass as they are.

Inside a JSON string a quote is always escaped, so the bytes `"kv_transfer_params"` with no backslash before them,
followed by a colon, are a key.
"""

import re

NAME = b"kv_transfer_params"
KEY = b'"%b"' % NAME
_AS_WRITTEN = b",%b:" % KEY
_COLON = re.compile(rb"\s*:\s*")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|["{}\[\]]', re.DOTALL)
_LITERAL_END = re.compile(rb"[,}\]\s]")
_SPACE = b" \t\r\n"
_TAIL_BYTES = 96
# After one of these no part of the field is under way.
_DECIDED = (b"\n", b"}")


def _unfinished(name: bytes) -> bytes:
    """A pattern for every beginning of a key, its opening quote already read."""
    pattern = rb'(?:"\s*)?'
    for char in reversed(name):
        pattern = b"(?:%c%b)?" % (char, pattern)
    return pattern


_TAIL = re.compile(rb'(?:(?:,\s*)?(?<!\\)"' + _unfinished(KEY.strip(b'"')) + rb"|,\s*|\\)\Z")


class Scrubber:
    """`feed` each chunk and send on what it returns; at the end send on what `rest` returns."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may go out now: perhaps nothing, perhaps more than `data`."""
        if self._held:
            return self._slow(self._held + data)
        found = data.find(NAME)  # sooner found than with its quotes, of which there are many
        while found > 1 and data.startswith(_AS_WRITTEN, found - 2):
            end = _flat_end(data, found + len(_AS_WRITTEN) - 2)
            if end is None:
                break
            data = data[: found - 2] + data[end:]
            found = data.find(NAME, found - 2)
        if found < 0:
            return data if data.endswith(_DECIDED) else self._slow(data, len(data))
        return self._slow(data, max(0, found - 1))

    def rest(self) -> bytes:
        """What is still held at the end of the body; a field that never ended is dropped."""
        held, self._held = self._held, b""
        return b"" if _field(held, 0) else held

    def _slow(self, data: bytes, clean: int = 0) -> bytes:
        """`feed` for data whose first `clean` bytes hold no field."""
        out, position = [], 0
        while (field := _field(data, clean or position)) is not None:
            start, value = field
            clean = 0
            first, comma = _before(data, start, position)
            out.append(data[position:first])
            end = value_end(data, value)
            if end is None:
                self._held = data[first:]
                return b"".join(out)
            after = end if comma else _after_comma(data, end)
            if after is None:
                # Whether a comma follows is not known yet: an empty field keeps its place until then.
                self._held = KEY + b":{}"
                return b"".join(out)
            position = after
        keep = len(data) if data.endswith(_DECIDED) else max(position, _undecided(data))
        self._held = data[keep:]
        out.append(data[position:keep])
        return b"".join(out)


def scrub(body: bytes) -> bytes:
    """A complete body without the field."""
    if KEY not in body:
        return body
    scrubber = Scrubber()
    return scrubber.feed(body) + scrubber.rest()


def value_end(data: bytes, start: int) -> int | None:
    """Where the JSON value that begins at `start` ends; None when it is not complete."""
    if (flat := _flat_end(data, start)) is not None:
        return flat
    if start >= len(data):
        return None
    if data[start] not in b'"{[':
        end = _LITERAL_END.search(data, start)
        return None if end is None else end.start()
    depth = 0
    for token in _TOKEN.finditer(data, start):
        text = token.group()
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif text == b'"':
            return None  # a string that has not ended
        if depth == 0:
            return token.end()
    return None


def _flat_end(data: bytes, start: int) -> int | None:
    """Where an object ends that holds no other and no escapes, or a null: what engines write, found in one step."""
    if data.startswith(b"null", start):
        return start + 4
    end = data.find(b"}", start)
    if end < 0 or not data.startswith(b"{", start) or data.find(b"\\", start, end) >= 0:
        return None
    # With as many quotes that open as close, the brace is outside of a text.
    nested = data.find(b"{", start + 1, end) >= 0 or data.count(b'"', start, end) % 2
    return None if nested else end + 1


def _field(data: bytes, position: int) -> tuple[int, int] | None:
    """Where the next field's key and value begin."""
    while (start := data.find(KEY, position)) >= 0:
        position = start + len(KEY)
        colon = _COLON.match(data, position)
        if colon is not None and data[start - 1 : start] != b"\\":
            return start, colon.end()
    return None


def _before(data: bytes, start: int, floor: int) -> tuple[int, bool]:
    """Where the field begins, with the comma and space in front of it, and whether there was a comma."""
    at = start
    while at > floor and data[at - 1] in _SPACE:
        at -= 1
    if at > floor and data[at - 1] == ord(","):
        return at - 1, True
    return start, False


def _after_comma(data: bytes, end: int) -> int | None:
    """Past the comma that follows a first field, if one does; None when that is not known yet."""
    at = end
    while at < len(data) and data[at] in _SPACE:
        at += 1
    if at == len(data):
        return None
    return at + 1 if data[at] == ord(",") else end


def _undecided(data: bytes) -> int:
    """From where on the end of `data` may be the beginning of the field."""
    tail = data[-_TAIL_BYTES:]
    found = _TAIL.search(tail)
    return len(data) if found is None else len(data) - len(tail) + found.start()
