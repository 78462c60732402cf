"""Proofs that reuse is verified: three conversations on real engines, each with the answer of a cold run beside it.

A cold run sends the same messages with reuse declined and under a salt of its own, so that no cache of any engine holds
them. Greedy answers of a float32 model must be equal to the letter.
"""

import secrets
from dataclasses import dataclass, field
from typing import Any

from neuron_pd.bench.client import REUSE_HEADER, Outcome, aiohttp, session, stream_chat
from neuron_pd.bench.target import Endpoints, ruler, served_model
from neuron_pd.bench.text import Ruler
from neuron_pd.errors import EngineError

PROMPT_TOKENS = 1200
FOLLOW_UP_TOKENS = 60
REPLY_TOKENS = 24

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Proof:
    """One claim, whether it held, and what was seen."""

    name: str
    claim: str
    held: bool
    seen: str


@dataclass(slots=True)
class Prover:
    """Holds the conversations. `salt` is shared by the turns that may reuse each other."""

    http: aiohttp.ClientSession
    url: str
    model: str
    ruler: Ruler
    salt: str = field(default_factory=lambda: secrets.token_hex(8))

    async def edited_history(self) -> Proof:
        """A conversation whose first message was replaced, under its old id; and one that was edited further on."""
        first = [await self._user("edited/1", PROMPT_TOKENS)]
        name = f"proof-edited-{self.salt}"
        reply = _text(await self._warm(first, name))
        other = await self._user("edited/other", PROMPT_TOKENS)
        follow_up = await self._user("edited/2", FOLLOW_UP_TOKENS)
        replaced = [other, _assistant(reply), follow_up]
        foreign, same = await self._beside_cold(replaced, name)
        # The edited turn is the conversation's last one; start over to edit the reply alone.
        await self._warm(first, name)
        kept, still_same = await self._beside_cold([first[0], _assistant("Edited. " + reply), follow_up], name)
        return Proof(
            "edited_history",
            "an edited history is answered as if nothing had been cached, and reuses only what is truly shared",
            same and still_same and foreign == 0 and 0 < kept < PROMPT_TOKENS + REPLY_TOKENS,
            f"first message replaced: {foreign} tokens reused; reply edited: {kept}; "
            + ("both answers equal a cold run's" if same and still_same else "an answer differs from a cold run's"),
        )

    async def fork(self) -> Proof:
        """Two branches of one conversation."""
        first = [await self._user("fork/1", PROMPT_TOKENS)]
        name = f"proof-fork-{self.salt}"
        history = [*first, _assistant(_text(await self._warm(first, name)))]
        found = [
            await self._beside_cold([*history, await self._user(f"fork/{branch}", FOLLOW_UP_TOKENS)], name)
            for branch in ("left", "right")
        ]
        reused = [tokens for tokens, _ in found]
        return Proof(
            "fork",
            "two branches of one conversation both start from its KV",
            min(reused) > 0 and all(same for _, same in found),
            f"reused {reused[0]} and {reused[1]} tokens; "
            + ("both answers equal a cold run's" if all(same for _, same in found) else "an answer differs"),
        )

    async def no_client_id(self) -> Proof:
        """A client that knows nothing of any of this: no id, no header, only its messages."""
        first = [await self._user("plain/1", PROMPT_TOKENS)]
        history = [*first, _assistant(_text(await self._warm(first, None)))]
        reused, same = await self._beside_cold([*history, await self._user("plain/2", FOLLOW_UP_TOKENS)], None)
        return Proof(
            "no_client_id",
            "a client that sends no conversation id gains too",
            reused > 0 and same,
            f"reused {reused} tokens; " + ("the answer equals a cold run's" if same else "the answer differs"),
        )

    async def _beside_cold(self, messages: Messages, name: str | None) -> tuple[int, bool]:
        """Tokens reused by this turn, and whether its answer is that of a cold run."""
        warm = await self._warm(messages, name)
        cold = await self._ask(messages, None, secrets.token_hex(8), {REUSE_HEADER: "off"})
        return (warm.report.reused if warm.report else 0), _text(warm) == _text(cold)

    async def _warm(self, messages: Messages, name: str | None) -> Outcome:
        return await self._ask(messages, name, self.salt, {})

    async def _ask(self, messages: Messages, name: str | None, salt: str, headers: dict[str, str]) -> Outcome:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": REPLY_TOKENS,
            "ignore_eos": True,
            "cache_salt": salt,
        }
        if name is not None:
            body["conversation_id"] = name
        outcome = await stream_chat(self.http, self.url, body, headers)
        if outcome.error:
            raise EngineError(f"a proof's request failed: {outcome.error}")
        return outcome

    async def _user(self, key: str, tokens: int) -> dict[str, str]:
        return {"role": "user", "content": await self.ruler.text(f"proof/{key}", tokens)}


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _text(outcome: Outcome) -> str:
    return "".join(outcome.reply.content)


async def prove(endpoints: Endpoints, model: str | None = None) -> list[Proof]:
    """All three proofs against running servers. EngineError when one of their requests fails."""
    async with session() as http:
        served = await served_model(http, endpoints.proxy, model)
        measure = await ruler(http, endpoints, served.name)
        prover = Prover(http, endpoints.proxy, served.name, measure)
        return [await prover.edited_history(), await prover.fork(), await prover.no_client_id()]
