"""The APIs of a fake engine, as vLLM writes them: prompts, whole answers, and streams.

A prompt renders to `<role>text<assistant>reply<role>…`, so that what D recorded (prompt and reply) is the beginning of
the next turn's prompt, as with real templates.
"""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

JSON = dict[str, Any]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
GENERATE = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)


def prompt_text(body: JSON) -> str:
    """The prompt that a request renders to."""
    if "prompt" in body:
        prompt = body["prompt"]
        return prompt if isinstance(prompt, str) else json.dumps(prompt)
    turns = body.get("messages", body.get("input", []))
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    system = body.get("system") or body.get("instructions")
    head = "".join(f"<{name}>{json.dumps(body[name])}" for name in ("tools", "chat_template_kwargs") if name in body)
    return head + (f"<system>{_text(system)}" if system else "") + "".join(_rendered(turn) for turn in turns)


def _rendered(turn: JSON) -> str:
    role = turn.get("role", "tool" if "output" in turn else "assistant")
    text = _text(turn.get("content", turn.get("output")))
    return text if role == "assistant" else f"<{role}>{text}<assistant>"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


def whole(path: str, body: JSON, text: str, length: bool, calls: list[JSON]) -> JSON:
    """An answer that is not streamed; `length`: it ended by its cap."""
    prompt = len(prompt_text(body))
    if path == MESSAGES:
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model"),
            "content": [{"type": "text", "text": text}, *({"type": "tool_use", **call} for call in calls)],
            "stop_reason": "max_tokens" if length else "end_turn", "stop_sequence": None,
            "usage": {"input_tokens": prompt, "output_tokens": 3},
        }  # fmt: skip
    if path == RESPONSES:
        return _response(body, text, "incomplete" if length else "completed", calls)
    choice: JSON = {"index": 0, "finish_reason": "length" if length else "stop", "logprobs": None}
    if path == CHAT:
        choice["message"] = {"role": "assistant", "content": text, "tool_calls": calls}
    else:
        choice["text"] = text
        if body.get("return_token_ids"):
            choice["token_ids"] = [ord(letter) for letter in text]
    return {
        "id": "cmpl-1", "object": "chat.completion", "created": 1, "model": body.get("model"),
        "choices": [{**choice, "index": index} for index in range(body.get("n") or 1)],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3},
    }  # fmt: skip


def events(path: str, body: JSON, text: str, calls: list[JSON], leaked: JSON) -> Iterator[bytes]:
    """A stream, event by event; `leaked` fields stand beside its finish."""
    if path == MESSAGES:
        yield from _message_events(body, text, calls, leaked)
    elif path == RESPONSES:
        yield from _response_events(body, text, calls, leaked)
    else:
        yield from _choice_events(path == CHAT, body, text, calls, leaked)


def _choice_events(chat: bool, body: JSON, text: str, calls: list[JSON], leaked: JSON) -> Iterator[bytes]:
    for piece in _pieces(text):
        yield _chunk({"choices": [{"index": 0, **({"delta": {"content": piece}} if chat else {"text": piece})}]})
    for index, call in enumerate(calls):
        yield _chunk({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, **call}]}}]})
    last = {"index": 0, "finish_reason": "stop", **({"delta": {}} if chat else {"text": ""})}
    yield _chunk({"choices": [last], **leaked})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _chunk({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}})
    yield b"data: [DONE]\n\n"


def _message_events(body: JSON, text: str, calls: list[JSON], leaked: JSON) -> Iterator[bytes]:
    empty = {**whole(MESSAGES, body, text, False, calls), "content": [], "stop_reason": None}
    yield _named("message_start", {"message": empty})
    yield _named("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})
    for piece in _pieces(text):
        yield _named("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": piece}})
    yield _named("content_block_stop", {"index": 0})
    for index, call in enumerate(calls, start=1):
        block = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}}
        yield _named("content_block_start", {"index": index, "content_block": block})
        for piece in _pieces(json.dumps(call["input"])):
            yield _named(
                "content_block_delta", {"index": index, "delta": {"type": "input_json_delta", "partial_json": piece}}
            )
        yield _named("content_block_stop", {"index": index})
    delta = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield _named("message_delta", {"delta": delta, "usage": {"output_tokens": 3}, **leaked})
    yield _named("message_stop", {})


def _response_events(body: JSON, text: str, calls: list[JSON], leaked: JSON) -> Iterator[bytes]:
    done = _response(body, text, "completed", calls)
    yield _named("response.created", {"response": {**done, "output": [], "status": "in_progress"}})
    for piece in _pieces(text):
        yield _named("response.output_text.delta", {"output_index": 0, "content_index": 0, "delta": piece})
    yield _named("response.completed", {"response": {**done, **leaked}})


def _response(body: JSON, text: str, status: str, calls: list[JSON]) -> JSON:
    message = {
        "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }  # fmt: skip
    return {
        "id": f"resp_{uuid4().hex}", "object": "response", "created_at": 1, "model": body.get("model"),
        "status": status, "output": [message, *({"type": "function_call", **call} for call in calls)],
        "usage": {"input_tokens": len(prompt_text(body)), "output_tokens": 3}, "kv_transfer_params": None,
    }  # fmt: skip


def _pieces(text: str) -> list[str]:
    first, *others = text.split(" ")
    return [first, *(f" {other}" for other in others)]


def _chunk(chunk: JSON) -> bytes:
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake", **chunk}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def _named(name: str, event: JSON) -> bytes:
    body = json.dumps({"type": name, **event}, separators=(",", ":"))
    return f"event: {name}\ndata: {body}\n\n".encode()
