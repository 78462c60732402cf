"""What is measured of each system, one trial after the other, each on a decode engine that nothing is held on."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from ci.compare.systems import Messages, System, Turn
from neuron_pd.bench.client import aiohttp
from neuron_pd.bench.text import Ruler
from neuron_pd.errors import EngineError

IDLE_CONVERSATIONS = 16
IDLE_TOKENS = 900
EDITED_TOKENS = 1200
FOLLOW_UP_TOKENS = 60
CPU_SECONDS = 10.0
USAGE = "vllm:kv_cache_usage_perc"


@dataclass(slots=True)
class Bench:
    """One running system and what is needed to put it through the trials. `ttl` is upstream's retention, seconds."""

    system: System
    http: aiohttp.ClientSession
    decode: str
    ruler: Ruler
    ttl: float

    async def run(self, lengths: Sequence[int], repeats: int) -> dict[str, Any]:
        """All trials, under the names that the JSON has."""
        await self._warm_up()
        found: dict[str, Any] = {"lengths": {str(length): await self._length(length, repeats) for length in lengths}}
        found["edited_history"] = await self._edited()
        found["idle_conversations"] = await self._idle()
        found["after_expiry"] = await self._expired()
        return found

    async def _warm_up(self) -> None:
        """Two turns: the engines' connections to each other, in both directions."""
        first = [await self._user("warm", 500)]
        reply = await self._ok(first, "warm")
        await self._ok(await self._next(first, reply, "warm/2"), "warm")

    async def _length(self, length: int, repeats: int) -> dict[str, dict[str, float]]:
        """Medians over `repeats` conversations of this length whose next turn is served with reuse, and without."""
        turns: dict[str, list[Turn]] = {"off": [], "on": []}
        await self._until_free()
        for repeat in range(repeats):
            for leg, seen in turns.items():
                first = [await self._user(f"length/{length}", length)]
                name = f"{leg}-{length}-{repeat}"
                follow_up = await self._next(first, await self._ok(first, name), name)
                seen.append(await self._turn(follow_up, name, reuse=leg == "on", stream=True))
        return {
            leg: {
                "prefill_ms": round(statistics.median(turn.prefill_ms for turn in seen), 1),
                "ttft_ms": round(statistics.median(turn.ttft_ms for turn in seen), 1),
            }
            for leg, seen in turns.items()
        }

    async def _edited(self) -> dict[str, Any]:
        """The conversation's first message is another one in its next turn."""
        await self._until_free()
        first = [await self._user("edited", EDITED_TOKENS)]
        reply = await self._ok(first, "edited")
        edited = await self._next([await self._user("another", EDITED_TOKENS)], reply, "edited/2")
        turn = await self._turn(edited, "edited")
        cold = await self._turn(edited, "cold", cold=True)
        return {"status": turn.status, "right": turn.status == 200 and turn.text == cold.text}

    async def _idle(self) -> dict[str, Any]:
        """First turns of sixteen conversations, one after the other; each is idle from then on."""
        await self._until_free()
        waits = []
        for number in range(IDLE_CONVERSATIONS):
            messages, started = [await self._user(f"idle/{number}", IDLE_TOKENS)], time.perf_counter()
            await self._ok(messages, f"idle-{number}")
            waits.append(time.perf_counter() - started)
        return {"longest_s": round(max(waits), 2), "median_s": round(statistics.median(waits), 2)}

    async def _expired(self) -> dict[str, Any]:
        """A turn that comes after D's retention, and D's engine loop meanwhile, as a share of one core."""
        await self._until_free()
        first = [await self._user("expired", EDITED_TOKENS)]
        reply = await self._ok(first, "expired")
        finished = time.monotonic()
        await asyncio.sleep(1)  # the engine still tells its worker and its clients of the end
        share = await engine_loop_share(self.decode, CPU_SECONDS)
        await asyncio.sleep(max(0.0, finished + self.ttl + 3 - time.monotonic()))
        follow_up = await self._next(first, reply, "expired/2")
        turn = await self._turn(follow_up, "expired")
        cold = await self._turn(follow_up, "cold", cold=True)
        right = turn.status == 200 and turn.text == cold.text
        return {"status": turn.status, "right": right, "error": turn.error, "engine_loop_cores": round(share, 3)}

    async def _turn(self, messages: Messages, name: str, **how: bool) -> Turn:
        return await self.system.turn(messages, name, **how)

    async def _ok(self, messages: Messages, name: str) -> str:
        turn = await self._turn(messages, name)
        if turn.status != 200 or turn.error:
            raise EngineError(f"{self.system.name}: {name}: HTTP {turn.status}: {turn.error}")
        return turn.text

    async def _next(self, history: Messages, reply: str, key: str) -> Messages:
        return [*history, {"role": "assistant", "content": reply}, await self._user(key, FOLLOW_UP_TOKENS)]

    async def _user(self, key: str, tokens: int) -> dict[str, str]:
        return {"role": "user", "content": await self.ruler.text(f"compare/{key}", tokens)}

    async def _until_free(self) -> None:
        """Until D holds no blocks; upstream's are held for the retention after each turn that nothing follows."""
        deadline = time.monotonic() + 2 * self.ttl + 30
        while await kv_usage(self.http, self.decode) > 0:
            if time.monotonic() > deadline:
                raise EngineError(f"{self.system.name}: the decode engine still holds blocks: its retention has passed")
            await asyncio.sleep(0.5)


async def kv_usage(http: aiohttp.ClientSession, url: str) -> float:
    """The share of the engine's KV blocks that are in use, from its own metrics."""
    async with http.get(f"{url}/metrics") as answer:
        page = await answer.text()
    values = [float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(USAGE)]
    if not values:
        raise EngineError(f"{url}/metrics has no {USAGE}")
    return max(values)


async def engine_loop_share(url: str, seconds: float) -> float:
    """CPU time of the engine loop (the main thread of vLLM's EngineCore) over wall time, for `seconds`."""
    engine = engine_process(int(url.rpartition(":")[2]))
    before, started = _main_thread_seconds(engine), time.monotonic()
    await asyncio.sleep(seconds)
    return (_main_thread_seconds(engine) - before) / (time.monotonic() - started)


def engine_process(port: int) -> psutil.Process:
    """The EngineCore process of the API server that listens on `port`."""
    connections = psutil.net_connections("tcp")
    listening = [one for one in connections if one.status == psutil.CONN_LISTEN]
    servers = [one.pid for one in listening if one.laddr and one.laddr.port == port]
    family = [child for pid in servers if pid for child in psutil.Process(pid).children(recursive=True)]
    engines = [child for child in family if "EngineCore" in " ".join(child.cmdline())]
    if not engines:
        raise EngineError(f"no EngineCore process below the server on port {port}")
    return engines[0]


def _main_thread_seconds(process: psutil.Process) -> float:
    main = next(thread for thread in process.threads() if thread.id == process.pid)
    return main.user_time + main.system_time
