"""Clients that talk all the while, and what became of each request."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from ci.chaos.parts import Whole
from ci.random_conversations import Conversation, body_of
from neuron_pd.bench.client import Outcome, aiohttp, stream_chat
from neuron_pd.bench.text import words
from neuron_pd.core.decision import Path

BACK_WITHIN = 2  # turns after everything runs again: the first finds or makes the KV anew, the next reads it back
RETRY_SECONDS = 0.5
TURNS = 8  # of a conversation, before another one takes its place


@dataclass(slots=True)
class Talk:
    """Everything that was asked and answered. `stuck` and `unclear` are what no client should ever see."""

    http: aiohttp.ClientSession
    whole: Whole
    seed: int
    seen: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    stuck: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    answered: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    over: bool = False

    async def go_on(self, client: int) -> None:
        """Hold one conversation after the other until it is over. What fails is asked again, as a client would."""
        number = client
        while not self.over:
            number += 1000
            conversation = Conversation.of(self.seed, number)
            for _ in range(TURNS):
                conversation.say()
                if (reply := await self._until_answered(conversation)) is None:
                    return
                conversation.hear(reply)

    async def _until_answered(self, conversation: Conversation) -> str | None:
        while True:
            reply = await self._turn(conversation)
            if reply is not None or self.over:
                return reply
            await asyncio.sleep(RETRY_SECONDS)

    async def _turn(self, conversation: Conversation) -> str | None:
        fields, headers = conversation.identity()
        return self._judge(await self._ask({**body_of(conversation.messages), **fields}, headers), conversation)

    async def _ask(self, body: dict[str, Any], headers: dict[str, str]) -> Outcome:
        return await stream_chat(self.http, self.whole.urls["proxy"], body, headers)

    def _judge(self, outcome: Outcome, conversation: Conversation) -> str | None:
        """The reply of a request that succeeded."""
        self.seen["requests"] += 1
        if outcome.report is not None:
            self.seen[str(outcome.report.path)] += 1
        if not outcome.error:
            reply = "".join(outcome.reply.content)
            self.answered.append((body_of(list(conversation.messages)), reply))
            return reply
        said = f"after {outcome.ended - outcome.started:.1f} s: {outcome.error}"
        if "Timeout" in outcome.error:
            self.stuck.append(said)
        elif outcome.status >= 400:
            self.failures[f"HTTP {outcome.status}"] += 1
        elif outcome.reply.error:
            self.failures["error event in the stream"] += 1
        elif self.whole.proxy.out_between(outcome.started, outcome.ended):
            self.failures["the proxy itself was down"] += 1
        else:
            self.unclear.append(said)
        return None

    async def turns_until_reuse(self) -> int:
        """How many turns a new conversation takes, after its first, until one starts from KV that was kept."""
        name = uuid4().hex
        messages = [{"role": "user", "content": words(name, 1200)}]
        for turn in range(2 * BACK_WITHIN):
            outcome = await self._ask(body_of(messages), {"X-Session-ID": name})
            if outcome.error:
                return 2 * BACK_WITHIN
            if outcome.report is not None and outcome.report.path == Path.READ_BACK:
                return turn
            messages += [
                {"role": "assistant", "content": "".join(outcome.reply.content)},
                {"role": "user", "content": words(uuid4().hex, 120)},
            ]
        return 2 * BACK_WITHIN

    async def wrong_answers(self) -> list[dict[str, Any]]:
        """Those that differ from a cold run on P alone, which keeps no prefix cache."""
        wrong = []
        for body, reply in self.answered:
            cold = await stream_chat(self.http, self.whole.urls["prefill"], body, {})
            expected = "".join(cold.reply.content)
            if cold.error or reply != expected:
                wrong.append({**body, "answer": reply, "cold": expected, "cold_error": cold.error})
        return wrong
