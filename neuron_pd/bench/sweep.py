"""The sweep: for each prompt length one multi-turn conversation with reuse off and the same one with reuse on.

Both legs say the same words, so that their answers can be compared. What keeps one from warming the other is the
`cache_salt` of each conversation: vLLM hashes it into a prompt's first block, and through the chain into all others.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, TypeAlias

from neuron_pd.bench import provenance
from neuron_pd.bench.client import REUSE_HEADER, Outcome, aiohttp, session, stream_chat
from neuron_pd.bench.engine_metrics import EngineMeter
from neuron_pd.bench.records import OFF, ON, Record
from neuron_pd.bench.target import Endpoints, ServedModel, check_room, ruler, served_model
from neuron_pd.bench.text import Ruler
from neuron_pd.core.control import control_token
from neuron_pd.errors import EngineError, UsageError

TURN_OVERHEAD_TOKENS = 40  # what a chat template may put around one user message and one reply
WARM_UP_REPLY_TOKENS = 8


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What to measure. Lengths and sizes are in tokens; `length` is that of a conversation's first prompt.

    `seed` chooses the words; `nonce` makes the salts of this run unlike those of any other. `model` None is the first
    that the server lists. UsageError for numbers that cannot be measured.
    """

    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    turns: int = 4
    user_tokens: int = 150
    reply_tokens: int = 32
    legs: tuple[str, ...] = (OFF, ON)
    repeats: int = 1
    seed: int = 0
    model: str | None = None
    warm_up: bool = True
    nonce: str = field(default_factory=lambda: secrets.token_hex(4))

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 16:
            raise UsageError("prompt lengths must be 16 tokens or more")
        if self.turns < 2:
            raise UsageError("a conversation needs at least 2 turns: the first is cold with and without reuse")
        if min(self.user_tokens, self.reply_tokens, self.repeats) < 1:
            raise UsageError("user tokens, reply tokens and repeats must be 1 or more")
        if not self.legs or not set(self.legs) <= {OFF, ON}:
            raise UsageError("a leg is on or off")

    @property
    def later_tokens(self) -> int:
        """At most how many tokens a conversation adds to its first prompt."""
        return self.turns * (self.user_tokens + self.reply_tokens + TURN_OVERHEAD_TOKENS) - self.user_tokens

    @property
    def total(self) -> int:
        """Measured requests."""
        return len(self.lengths) * self.repeats * len(self.legs) * self.turns

    def conversations(self) -> Iterator["Conversation"]:
        """In the order of measurement. The leg that goes first alternates, so that neither always has the warm seat."""
        for index, (length, repeat) in enumerate(product(self.lengths, range(self.repeats))):
            for leg in self.legs if index % 2 == 0 else reversed(self.legs):
                yield Conversation(leg, length, repeat, f"bench-{self.nonce}-{leg}-{length}-{repeat}")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One leg at one length. `name` is its conversation id and its cache salt."""

    leg: str
    length: int
    repeat: int
    name: str


@dataclass(frozen=True, slots=True)
class Step:
    """Where a sweep is: `record` None before a request, the measured turn after it. `turn` 0 is the warm-up."""

    conversation: Conversation
    turn: int
    done: int
    total: int
    record: Record | None = None


Sink: TypeAlias = Callable[[Record], None]
Progress: TypeAlias = Callable[[Step], None]


async def describe(
    plan: SweepPlan, endpoints: Endpoints, command: list[str], token: str | None = None
) -> tuple[SweepPlan, dict[str, Any]]:
    """The plan with its model resolved, and the header for its records file. UsageError when it cannot be measured.

    `token` is the engines' control token, the environment's if not given.
    """
    token = token or control_token()
    async with session() as http:
        model = await served_model(http, endpoints.proxy, plan.model)
        check_room(model, plan.lengths, plan.later_tokens)
        engines = {
            role: await provenance.engine_info(http, url, token)
            for role, url in (("prefill", endpoints.prefill), ("decode", endpoints.decode))
        }
    plan = replace(plan, model=model.name)
    served = {"model": asdict(model), "urls": asdict(endpoints)}
    return plan, {**provenance.header(asdict(plan), engines, command), **served}


async def run_sweep(
    plan: SweepPlan, endpoints: Endpoints, sink: Sink, progress: Progress | None = None
) -> list[Record]:
    """Measure one conversation at a time; every record goes to `sink` as soon as it is there.

    A failed turn is recorded and ends its conversation. UsageError when the plan does not fit the server, EngineError
    when a warm-up fails.
    """
    async with session() as http:
        model = await served_model(http, endpoints.proxy, plan.model)
        check_room(model, plan.lengths, plan.later_tokens)
        measure = await ruler(http, endpoints, model.name)
        sweep = _Sweep(plan, endpoints, http, model, measure, sink, progress or (lambda step: None))
        return await sweep.run()


class _Sweep:
    def __init__(
        self,
        plan: SweepPlan,
        endpoints: Endpoints,
        http: aiohttp.ClientSession,
        model: ServedModel,
        measure: Ruler,
        sink: Sink,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._url = endpoints.proxy
        self._http = http
        self._model = model.name
        self._ruler = measure
        self._sink = sink
        self._progress = progress
        self._prefill = EngineMeter(http, endpoints.prefill)
        self._decode = EngineMeter(http, endpoints.decode)
        self._done: list[Record] = []

    async def run(self) -> list[Record]:
        if self._plan.warm_up:
            await self._warm_up(min(self._plan.lengths))
        for conversation in self._plan.conversations():
            await self._converse(conversation)
        return self._done

    async def _warm_up(self, length: int) -> None:
        """Two turns that are not recorded: they open the engines' connections to each other in both directions.

        Their transfers are waited for as well, or the first measured turn would be given them.
        """
        conversation = Conversation(ON, length, 0, f"bench-{self._plan.nonce}-warm-up-{length}")
        self._progress(self._step(conversation, 0))
        messages: list[dict[str, str]] = []
        for turn in (1, 2):
            messages.append(await self._question(f"warm-up/{length}", length, turn))
            _, outcome = await self._turn(conversation, turn, messages, WARM_UP_REPLY_TOKENS)
            if outcome.error:
                raise EngineError(f"the warm-up at {length} tokens failed: {outcome.error}")
            messages.append(_answer(outcome))

    async def _converse(self, conversation: Conversation) -> None:
        key = f"{self._plan.seed}/{conversation.length}/{conversation.repeat}"
        messages: list[dict[str, str]] = []
        for turn in range(1, self._plan.turns + 1):
            messages.append(await self._question(key, conversation.length, turn))
            self._progress(self._step(conversation, turn))
            record, outcome = await self._turn(conversation, turn, messages, self._plan.reply_tokens)
            self._done.append(record)
            self._sink(record)
            self._progress(replace(self._step(conversation, turn), record=record))
            if not record.ok:
                break
            messages.append(_answer(outcome))

    async def _question(self, key: str, length: int, turn: int) -> dict[str, str]:
        tokens = length - self._ruler.overhead if turn == 1 else self._plan.user_tokens
        return {"role": "user", "content": await self._ruler.text(f"{key}/{turn}", max(1, tokens))}

    async def _turn(
        self, conversation: Conversation, turn: int, messages: list[dict[str, str]], reply_tokens: int
    ) -> tuple[Record, Outcome]:
        before = await self._prefill.read(), await self._decode.read()
        outcome = await self._send(conversation, messages, reply_tokens)
        reused = outcome.report is not None and outcome.report.reused > 0
        read_back = await self._prefill.since(before[0], expected=reused)
        hand_off = await self._decode.since(before[1], expected=not outcome.error)
        record = _record(conversation, turn, _identify(messages), outcome)
        return replace(record, read_back=read_back, hand_off=hand_off), outcome

    async def _send(self, conversation: Conversation, messages: list[dict[str, str]], reply_tokens: int) -> Outcome:
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": reply_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_salt": conversation.name,
            "conversation_id": conversation.name,
        }
        headers = {REUSE_HEADER: "off"} if conversation.leg == OFF else {}
        return await stream_chat(self._http, self._url, body, headers)

    def _step(self, conversation: Conversation, turn: int) -> Step:
        return Step(conversation, turn, len(self._done), self._plan.total)


def _answer(outcome: Outcome) -> dict[str, str]:
    return {"role": "assistant", "content": "".join(outcome.reply.content)}


def _identify(messages: list[dict[str, str]]) -> str:
    return hashlib.blake2b(json.dumps(messages).encode(), digest_size=8).hexdigest()


def _record(conversation: Conversation, turn: int, history: str, outcome: Outcome) -> Record:
    reply = outcome.reply
    details = reply.usage.get("prompt_tokens_details") or {}
    return Record(
        leg=conversation.leg,
        length=conversation.length,
        repeat=conversation.repeat,
        turn=turn,
        conversation=conversation.name,
        history=history,
        started_at=outcome.started_at,
        started=outcome.started,
        ended=outcome.ended,
        first_token=reply.first_token,
        first_content=reply.first_content,
        chunks=tuple(reply.chunks),
        prompt_tokens=reply.usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        reply_tokens=reply.usage.get("completion_tokens"),
        reply="".join(reply.content),
        finish_reason=reply.finish_reason,
        status=outcome.status,
        error=outcome.error,
        server_timing=outcome.server_timing,
        report=outcome.report,
    )
