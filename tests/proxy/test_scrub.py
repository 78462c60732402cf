"""Taking kv_transfer_params out, however the bytes are cut."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neuron_pd.proxy.scrub import Scrubber, scrub

FIELD = "kv_transfer_params"

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([FIELD, f'"{FIELD}":', f'\\"{FIELD}": 1'])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
OBJECTS = st.lists(st.tuples(st.text(max_size=5) | st.just(FIELD + "x"), VALUES), max_size=4)


def pieces(data: bytes, edges: list[int]) -> list[bytes]:
    cuts = sorted({0, len(data), *(edge % (len(data) + 1) for edge in edges)})
    return [data[start:end] for start, end in itertools.pairwise(cuts)]


def fed(parts: list[bytes]) -> bytes:
    scrubber = Scrubber()
    return b"".join([*(scrubber.feed(part) for part in parts), scrubber.rest()])


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without(inner) for name, inner in value.items() if name != FIELD}
    return [without(inner) for inner in value] if isinstance(value, list) else value


@settings(max_examples=150, deadline=None)
@given(OBJECTS, VALUES, st.integers(0, 4), st.booleans(), st.booleans(), st.lists(st.integers(0, 10_000), max_size=5))
def test_any_object_any_cuts(
    items: list[tuple[str, Any]], value: Any, at: int, ascii_only: bool, tight: bool, edges: list[int]
) -> None:
    at = min(at, len(items))
    body = dict([*items[:at], (FIELD, value), *items[at:]])
    separators = (",", ":") if tight else (", ", ": ")
    data = json.dumps(body, ensure_ascii=ascii_only, separators=separators).encode("utf-8", "surrogatepass")
    out = fed(pieces(data, edges))
    assert json.loads(out.decode("utf-8", "surrogatepass")) == without(body)


@settings(max_examples=80, deadline=None)
@given(OBJECTS, st.lists(st.integers(0, 10_000), max_size=8))
def test_what_does_not_hold_it_is_untouched(items: list[tuple[str, Any]], edges: list[int]) -> None:
    body = {name: value for name, value in items if name != FIELD}
    data = json.dumps(body, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
    if without(body) == body:
        assert fed(pieces(data, edges)) == data


STREAM = (
    b'data: {"id":"1","choices":[{"delta":{"content":"a\xe2\x80\xa8b\xc2\x85\x0b"}}]}\n\n'
    b'data: {"id":"1","kv_transfer_params":{"remote_block_ids":[[1,2],[3]],"host":"10.0.0.7","a":"}\\"]"}}\n\n'
    b'data: {"kv_transfer_params": null, "id":"1"}\n\ndata: {"kv_transfer_params":{}}\n\n: comment\n\ndata: [DONE]\n\n'
)
CLEAN = (
    b'data: {"id":"1","choices":[{"delta":{"content":"a\xe2\x80\xa8b\xc2\x85\x0b"}}]}\n\n'
    b'data: {"id":"1"}\n\n'
    b'data: { "id":"1"}\n\ndata: {}\n\n: comment\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize("size", range(1, 60))
def test_stream_in_pieces_of_every_size(size: int) -> None:
    assert fed([STREAM[start : start + size] for start in range(0, len(STREAM), size)]) == CLEAN


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
@example([])
def test_stream_cut_anywhere(edges: list[int]) -> None:
    assert fed(pieces(STREAM, edges)) == CLEAN


def test_untouched_chunks_pass_as_they_are() -> None:
    scrubber, event = Scrubber(), b'data: {"choices":[]}\n\n'
    assert scrubber.feed(event) is event


def test_a_partial_line_is_not_held_back() -> None:
    assert Scrubber().feed(b'data: {"choices":[{"delta":{"content":"' + b"x" * 1000) == (
        b'data: {"choices":[{"delta":{"content":"' + b"x" * 1000
    )


def test_a_line_of_megabytes() -> None:
    line = (
        b'data: {"choices":[{"delta":{"content":"' + b"word " * 1_000_000 + b'"}}],"kv_transfer_params":{"a":[1]}}\n\n'
    )
    out = fed([line[start : start + 65536] for start in range(0, len(line), 65536)])
    assert out == line.replace(b',"kv_transfer_params":{"a":[1]}', b"")


def test_text_that_looks_like_the_field_stays() -> None:
    body = json.dumps(
        {"content": '"kv_transfer_params": {"x": 1}', "kv_transfer_params": {"remote_host": "h"}}
    ).encode()
    assert json.loads(scrub(body)) == {"content": '"kv_transfer_params": {"x": 1}'}


def test_a_field_that_never_ends_is_dropped() -> None:
    assert fed([b'{"a":1,"kv_transfer_params":{"remote_host":"10.0.0.7"']) == b'{"a":1'
