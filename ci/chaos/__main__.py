"""`python -m ci.chaos [--kills N] [--seed N] [--json FILE]`: kill and restart anything, and never answer wrongly.

Clients hold multi-turn conversations through the proxy, whose store is a real Redis, while P, D, the store and the
proxy are killed at random, one or two at a time, and started again. Exit status 1 when an answer differs from a cold
run's, a request hangs, fails without saying why, an engine holds a block at the end, or reuse does not come back
within a turn of everything running again.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Any

from ci.chaos.parts import Part, Whole, whole
from ci.chaos.talk import BACK_WITHIN, Talk
from ci.random_conversations import blocks_held
from ci.trial import add_options, carry_out
from neuron_pd.bench.client import session

PATIENCE_SECONDS = 120.0  # without a byte: then a request is stuck


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """The whole trial; what was found."""
    random, back = Random(options.seed), []
    async with session(PATIENCE_SECONDS) as http, whole(options) as running:
        talk = Talk(http, running, options.seed)
        clients = [asyncio.create_task(talk.go_on(number)) for number in range(options.clients)]
        await asyncio.sleep(options.calm)
        for victims in _victims(random, running, options.kills):
            back.append(await _strike(random, talk, victims))
            await asyncio.sleep(options.calm)
        talk.over = True
        await asyncio.gather(*clients)
        wrong = await talk.wrong_answers()
        held = await blocks_held(running.urls["prefill"], running.urls["decode"], running.token)
    return {
        "kills": back,
        "requests": talk.seen["requests"],
        "answers": len(talk.answered),
        "read_back": talk.seen["read_back"],
        "failures": dict(talk.failures),
        "stuck": talk.stuck,
        "unclear": talk.unclear,
        "held": held,
        "wrong": wrong,
    }


def _victims(random: Random, running: Whole, kills: int) -> Iterator[list[Part]]:
    """Every part in turn, in a random order each time round; a second one with it every third time."""
    order: list[Part] = []
    for _ in range(kills):
        order = order or random.sample(running.parts, len(running.parts))
        victims = [order.pop()]
        if random.random() < 1 / 3:
            victims.append(random.choice([part for part in running.parts if part is not victims[0]]))
        yield victims


async def _strike(random: Random, talk: Talk, victims: list[Part]) -> dict[str, Any]:
    """Kill, start again, and see how soon reuse is back."""
    names, began = [part.name for part in victims], time.monotonic()
    sys.stderr.write(f"killing {' and '.join(names)}\n")
    for part in victims:
        await part.kill()
        await asyncio.sleep(random.uniform(0, 1))
    await asyncio.sleep(random.uniform(0, 4))
    await asyncio.gather(*(part.start() for part in victims))
    await talk.whole.until_ready()
    up = time.monotonic() - began
    turns = await talk.turns_until_reuse()
    sys.stderr.write(f"{' and '.join(names)} up after {up:.0f} s, reuse back in turn {turns + 1}\n")
    return {"killed": names, "seconds": round(up, 1), "turns_until_reuse": turns}


def passed(found: dict[str, Any]) -> bool:
    """Whether nothing happened that must not."""
    back = all(kill["turns_until_reuse"] <= BACK_WITHIN for kill in found["kills"])
    bad = found["wrong"] or found["stuck"] or found["unclear"] or any(found["held"].values())
    return back and not bad


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ci.chaos", description="Kill and restart everything under load.")
    parser.add_argument("--kills", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument("--clients", type=int, default=4, help="that talk all the while (default: %(default)s)")
    parser.add_argument("--calm", type=float, default=5.0, help="seconds between kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    add_options(parser, "chaos", 18430)
    parser.set_defaults(retention="lease", at_once=8)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run it; the exit status."""
    options = arguments(argv)
    found = carry_out(run(options), options.json)
    sys.stdout.write(json.dumps({**found, "wrong": found["wrong"][:3]}, indent=2) + "\n")
    return 0 if passed(found) else 1


if __name__ == "__main__":
    sys.exit(main())
