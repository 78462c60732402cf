"""One conversation of a sweep: its requests, as the plan says, and what is kept of each."""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_pd.bench.client import REUSE_HEADER, Outcome, aiohttp, stream_chat
from neuron_pd.bench.records import OFF, Record
from neuron_pd.bench.sweep_plan import Planned, SweepPlan
from neuron_pd.bench.target import ServedModel
from neuron_pd.bench.workloads import Dialogue, History, Message, Turn


@dataclass(slots=True)
class Conversation:
    """One conversation of a cell under way. `name` is its conversation id and its cache salt."""

    cell: Planned
    index: int
    name: str
    dialogue: Dialogue
    history: History = field(default_factory=History)


class Client:
    """Sends a conversation's next request, as the plan says."""

    def __init__(self, http: aiohttp.ClientSession, url: str, model: ServedModel, plan: SweepPlan) -> None:
        self._http = http
        self._url = url
        self._model = model.name
        self._plan = plan
        self.room = model.max_model_len or sys.maxsize

    async def send(self, conversation: Conversation, messages: Sequence[Message], reply_tokens: int) -> Outcome:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": self._busted(messages, conversation.name),
            "max_tokens": reply_tokens,
            "temperature": 0,
            "ignore_eos": self._plan.ignore_eos,
            "conversation_id": conversation.name,
        }
        if self._plan.cache_bust == "salt":
            body["cache_salt"] = conversation.name
        if conversation.dialogue.tools:
            # The template shows the tools; a call would need a parser that belongs to the model.
            body |= {"tools": list(conversation.dialogue.tools), "tool_choice": "none"}
        headers = {REUSE_HEADER: "off"} if conversation.cell.leg == OFF else {}
        return await stream_chat(self._http, self._url, body, headers)

    def _busted(self, messages: Sequence[Message], name: str) -> list[Message]:
        if self._plan.cache_bust != "prefix":
            return list(messages)
        return [{**messages[0], "content": f"[{name}] {messages[0]['content']}"}, *messages[1:]]


def _identify(messages: Sequence[Message]) -> str:
    return hashlib.blake2b(json.dumps(messages).encode(), digest_size=8).hexdigest()


def record_of(talk: Conversation, number: int, turn: Turn, messages: Sequence[Message], outcome: Outcome) -> Record:
    reply, setting = outcome.reply, talk.cell.setting
    details = reply.usage.get("prompt_tokens_details") or {}
    return Record(
        leg=talk.cell.leg,
        repeat=talk.cell.repeat,
        turn=number,
        conversation=talk.name,
        history=_identify(messages),
        index=talk.index,
        note=turn.note,
        started_at=outcome.started_at,
        started=outcome.started,
        ended=outcome.ended,
        head=outcome.head,
        first_token=reply.first_token,
        first_content=reply.first_content,
        chunks=tuple(reply.chunks),
        pieces=len(reply.content),
        prompt_tokens=reply.usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        reply_tokens=reply.usage.get("completion_tokens"),
        reply="".join(reply.content),
        finish_reason=reply.finish_reason,
        status=outcome.status,
        error=outcome.error,
        server_timing=outcome.server_timing,
        report=outcome.report,
        **setting._asdict(),
    )
