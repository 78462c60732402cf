"""`python -m ci.random_conversations [--count N] [--first N] [--json FILE]`: every answer beside a cold run's.

Random conversations over real engines in float32, through the proxy: continued, edited, forked, regenerated, compacted
and abandoned at random, many at once, over a decode engine too small to keep them all. The cold answer to the same
messages comes from the prefill engine alone, which keeps no prefix cache and moves no KV for it.
Exit status 1 when an answer differs, a request fails, or an engine holds a block at the end.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from rich.console import Console

from ci.trial import MODEL, add_options, carry_out, topology
from neuron_pd.bench.client import Outcome, aiohttp, session, stream_chat
from neuron_pd.bench.provenance import engine_stats
from neuron_pd.bench.text import words
from neuron_pd.launcher.live import live
from neuron_pd.launcher.preflight import check_topology
from neuron_pd.launcher.supervisor import Running, Supervisor
from neuron_pd.launcher.topology import Topology

BLOCK_SIZE = 32  # tokens: the smallest that vLLM's CPU attention takes, so that short prompts have many blocks
DECODE_BLOCKS = 160
REPLY_TOKENS = 8
PIN_SECONDS = 20  # with pin retention: short, so that the last turns are let go of while the run waits
OPENINGS = 6  # conversations share their first words with others

Messages = list[dict[str, str]]


@dataclass(slots=True)
class Conversation:
    """One conversation's life: what it says next depends on its number and the seed alone, and on the answers."""

    number: int
    random: Random
    messages: Messages = field(default_factory=list)

    @classmethod
    def of(cls, seed: int, number: int) -> "Conversation":
        random = Random(f"{seed}/{number}")
        opening = words(f"opening/{random.randrange(OPENINGS)}", random.randrange(100, 500))
        return cls(number, random, [{"role": "system", "content": opening}])

    def identity(self) -> tuple[dict[str, str], dict[str, str]]:
        """Fields and headers by which a router may know it; a third of them are known by their transcript alone."""
        name = f"random-{self.number}"
        return (({"conversation_id": name}, {}), ({}, {"X-Session-ID": name}), ({}, {}))[self.number % 3]

    def say(self) -> str:
        """Change the messages to those of the next request; what was done to them."""
        if len(self.messages) < 3:
            self._ask()
            return "continue"
        does = self.random.choices(
            (self._ask, self._edit, self._fork, self._regenerate, self._compact), (5, 2, 2, 1, 1)
        )
        does[0]()
        return does[0].__name__.lstrip("_").replace("ask", "continue")

    def hear(self, reply: str) -> None:
        self.messages.append({"role": "assistant", "content": reply})

    def _ask(self) -> None:
        self.messages.append({"role": "user", "content": self._words(20, 160)})

    def _edit(self) -> None:
        """One message gets another word somewhere; what came after it may stay or go."""
        at = self.random.randrange(len(self.messages))
        spoken = self.messages[at]["content"].split()
        spoken[self.random.randrange(len(spoken))] = self._words(3, 9)
        self.messages[at] = {**self.messages[at], "content": " ".join(spoken)}
        if self.random.random() < 0.5:
            del self.messages[at + 1 :]
        self._ask_if_answered()

    def _fork(self) -> None:
        """Back to an earlier point, and on from there in another direction."""
        del self.messages[self.random.randrange(1, len(self.messages)) :]
        self._ask_if_answered()

    def _regenerate(self) -> None:
        self.messages.pop()

    def _compact(self) -> None:
        """The oldest messages become a few words."""
        cut = self.random.randrange(1, len(self.messages))
        self.messages[:cut] = [{"role": "system", "content": self._words(20, 120)}]
        self._ask_if_answered()

    def _ask_if_answered(self) -> None:
        if self.messages[-1]["role"] != "user":
            self._ask()

    def _words(self, low: int, high: int) -> str:
        return words(str(self.random.random()), self.random.randrange(low, high))


@dataclass(slots=True)
class Trial:
    """The running engines, and what has been seen of them."""

    http: aiohttp.ClientSession
    running: Running
    turns: int
    seen: Counter[str] = field(default_factory=Counter)
    answers: set[str] = field(default_factory=set)
    wrong: list[dict[str, Any]] = field(default_factory=list)

    async def hold(self, conversation: Conversation) -> None:
        """All turns of one conversation, each beside its cold run. A failed request ends it."""
        for _ in range(self.turns):
            done = conversation.say()
            self.seen[done] += 1
            if conversation.random.random() < 0.1:
                await self._abandon(conversation)
            if (reply := await self._turn(conversation, done)) is None:
                return
            conversation.hear(reply)

    async def _turn(self, conversation: Conversation, done: str) -> str | None:
        warm = await self._ask(conversation)
        cold = await stream_chat(self.http, self.running.prefill_url, body_of(conversation.messages), {})
        reply, expected = "".join(warm.reply.content), "".join(cold.reply.content)
        self.seen["turns"] += 1
        self.answers.add(expected)
        self._count(warm)
        if warm.error or cold.error or reply != expected:
            about = {"conversation": conversation.number, "did": done, "messages": list(conversation.messages)}
            errors = {"error": warm.error, "cold_error": cold.error}
            self.wrong.append({**about, **errors, "answer": reply, "cold": expected, "turn": str(warm.report)})
        return None if warm.error or cold.error else reply

    async def _ask(self, conversation: Conversation) -> Outcome:
        fields, headers = conversation.identity()
        body = {**body_of(conversation.messages), **fields}
        return await stream_chat(self.http, self.running.proxy_url, body, headers)

    async def _abandon(self, conversation: Conversation) -> None:
        """A client that leaves at any moment of its turn."""
        self.seen["abandoned"] += 1
        asking = asyncio.ensure_future(self._ask(conversation))
        await asyncio.wait([asking], timeout=conversation.random.uniform(0, 0.3))
        asking.cancel()
        await asyncio.wait([asking])

    def _count(self, outcome: Outcome) -> None:
        if (report := outcome.report) is not None:
            self.seen[f"{report.path}/{report.reason}"] += 1
            self.seen["prompt_tokens"] += report.prompt
            self.seen["reused_tokens"] += report.reused


def body_of(messages: Messages) -> dict[str, Any]:
    """The request for the answer to `messages`."""
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": REPLY_TOKENS, "ignore_eos": True}


async def hold_all(running: Running, options: argparse.Namespace) -> dict[str, Any]:
    """Hold the conversations that are asked for, `options.at_once` at a time, while there are minutes left."""
    started = time.monotonic()
    numbers = iter(range(options.first, options.first + options.count))
    held = 0
    async with session() as http:
        trial = Trial(http, running, options.turns)

        async def hold_one_after_the_other() -> None:
            nonlocal held
            while time.monotonic() - started < 60 * options.minutes and (number := next(numbers, None)) is not None:
                held += 1
                await trial.hold(Conversation.of(options.seed, number))

        await asyncio.gather(*(hold_one_after_the_other() for _ in range(options.at_once)))
    return {
        "first": options.first,
        "conversations": held,
        "equal": trial.seen["turns"] - len(trial.wrong),
        "distinct_answers": len(trial.answers),
        "seconds": round(time.monotonic() - started),
        **trial.seen,
        "held": await blocks_held(running.prefill_url, running.decode_url, running.token),
        "wrong": trial.wrong,
    }


async def blocks_held(prefill_url: str, decode_url: str, token: str | None) -> dict[str, float]:
    """The blocks that each engine still holds once everything is over; a hand-off that nobody reads lasts longest."""
    urls = {"prefill": prefill_url, "decode": decode_url}
    deadline = time.monotonic() + 90
    while True:
        held = {name: (await engine_stats(url, token))["kv_blocks_used"] for name, url in urls.items()}
        if not any(held.values()) or time.monotonic() > deadline:
            return held
        await asyncio.sleep(0.5)


def engines(options: argparse.Namespace) -> Topology:
    """P without a prefix cache, and a D that cannot keep all the conversations that are held at once."""
    made = topology(
        options,
        max_model_len=4096,
        recompute_threshold=1,
        retention=options.retention,
        decoder_kv_blocks_ttl=PIN_SECONDS,
        extra_args=("--block-size", str(BLOCK_SIZE), "--max-num-seqs", str(options.at_once)),
    )
    small = ("--num-gpu-blocks-override", str(DECODE_BLOCKS))
    return replace(made, decode=replace(made.decode, extra=(*made.decode.extra, *small)))


async def run(options: argparse.Namespace) -> dict[str, Any]:
    made = engines(options)
    check_topology(made)
    with live(Console(stderr=True)) as progress:
        async with Supervisor(made, progress) as running:
            return await hold_all(running, options)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    summary = "Hold random conversations, and compare every answer with a cold run's."
    parser = argparse.ArgumentParser(prog="python -m ci.random_conversations", description=summary)
    parser.add_argument("--count", type=int, default=1000, help="conversations (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="start none after these (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=4, help="turns of each (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=16, help="held side by side (default: %(default)s)")
    parser.add_argument("--retention", choices=("lease", "pin"), default="lease")
    parser.add_argument("--seed", type=int, default=0)
    add_options(parser, "random", 18410)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Hold the conversations; the exit status."""
    options = arguments(argv)
    found = carry_out(run(options), options.json)
    sys.stdout.write(json.dumps({**found, "wrong": found["wrong"][:3]}, indent=2) + "\n")
    sys.stdout.write(f"{found['equal']} of {found['turns']} answers equal a cold run's\n")
    return int(bool(found["wrong"]) or any(found["held"].values()))


if __name__ == "__main__":
    sys.exit(main())
