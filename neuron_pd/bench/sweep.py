"""The sweep: the same multi-turn conversations with reuse off and with reuse on, under a load.

Both legs say the same words, so that their answers can be compared. What keeps one from warming the other is the
`cache_salt` of each conversation: vLLM hashes it into a prompt's first block, and through the chain into all others.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, TypeAlias

from neuron_pd.bench import provenance
from neuron_pd.bench.client import Outcome, session
from neuron_pd.bench.conversation import Client, Conversation, record_of
from neuron_pd.bench.engine_metrics import EngineMeter, Reading, moved
from neuron_pd.bench.records import ON, Cell, Record, Setting
from neuron_pd.bench.sweep_plan import Planned, SweepPlan
from neuron_pd.bench.target import Endpoints, check_room, ruler, served_model
from neuron_pd.bench.text import Ruler
from neuron_pd.bench.workloads import Dialogue, Turn, Workload, workload
from neuron_pd.core.control import control_token
from neuron_pd.errors import EngineError

__all__ = ["Conversation", "Progress", "Sink", "Step", "SweepPlan", "describe", "run_sweep"]

WARM_UP_REPLY_TOKENS = 8
OWN_LENGTHS_WARM_UP = 256  # tokens, where the workload has lengths of its own


@dataclass(frozen=True, slots=True)
class Step:
    """Where a sweep is: `record` None before a request, the measured turn after it. `turn` 0 is the warm-up.

    `total` is None until it is known how much a workload holds.
    """

    leg: str
    setting: Setting
    turn: int
    done: int
    total: int | None
    record: Record | None = None


Sink: TypeAlias = Callable[[Record | Cell], None]
Progress: TypeAlias = Callable[[Step], None]
Key: TypeAlias = tuple[str, Setting, int]


async def describe(
    plan: SweepPlan, endpoints: Endpoints, command: list[str], token: str | None = None
) -> tuple[SweepPlan, dict[str, Any]]:
    """The plan with its model resolved, and the header for its records file. UsageError when it cannot be measured.

    `token` is the engines' control token, the environment's if not given.
    """
    token = token or control_token()
    says = workload(plan.workload)
    async with session() as http:
        model = await served_model(http, endpoints.proxy, plan.model)
        if says.sized:
            check_room(model, plan.lengths, plan.later_tokens)
        engines = {
            role: await provenance.engine_info(http, url, token)
            for role, url in (("prefill", endpoints.prefill), ("decode", endpoints.decode))
        }
    plan = replace(plan, model=model.name)
    served = {"model": asdict(model), "urls": asdict(endpoints)}
    return plan, {**provenance.header(asdict(plan), engines, command), **served}


async def run_sweep(
    plan: SweepPlan,
    endpoints: Endpoints,
    sink: Sink,
    progress: Progress | None = None,
    *,
    done: Collection[Key] = (),
    token: str | None = None,
    limit_link: Callable[[str], None] | None = None,
) -> list[Record]:
    """Measure the plan's cells, those in `done` aside; every record goes to `sink` as soon as it is there.

    A failed turn is recorded and ends its conversation. `limit_link` is called with each of the plan's links before it
    is measured. UsageError when the plan does not fit the server, EngineError when a warm-up fails.
    """
    token = token or control_token()
    says = workload(plan.workload, plan.time_scale)
    async with session() as http:
        model = await served_model(http, endpoints.proxy, plan.model)
        if says.sized:
            check_room(model, plan.lengths, plan.later_tokens)
        measure = await ruler(http, endpoints, model.name)
        engines = EngineMeter(http, endpoints.prefill, token=token), EngineMeter(http, endpoints.decode, token=token)
        sweep = _Sweep(plan, says, Client(http, endpoints.proxy, model, plan), measure, engines, sink)
        return await sweep.run(progress or (lambda step: None), done, limit_link or (lambda link: None))


class _Sweep:
    def __init__(
        self,
        plan: SweepPlan,
        says: Workload,
        client: Client,
        measure: Ruler,
        engines: tuple[EngineMeter, EngineMeter],
        sink: Sink,
    ) -> None:
        self._plan = plan
        self._says = says
        self._client = client
        self._ruler = measure
        self._prefill, self._decode = engines
        self._sink = sink
        self._progress: Progress = lambda step: None
        self._records: list[Record] = []
        self._total: int | None = None
        self._prepared: tuple[str, list[Dialogue]] = ("", [])

    async def run(self, progress: Progress, done: Collection[Key], limit_link: Callable[[str], None]) -> list[Record]:
        self._progress = progress
        planned = list(self._plan.cells(sized=self._says.sized, timed=self._says.timed))
        cells = [cell for cell in planned if cell.key not in done]
        link = None
        for cell in cells:
            if cell.setting.link != link:
                link = cell.setting.link
                limit_link(link)
                if self._plan.warm_up:
                    await self._warm_up(cell)
            dialogues = await self._dialogues(cell)
            self._total = self._total or len(cells) * sum(len(dialogue.turns) for dialogue in dialogues)
            await self._measure(cell, dialogues)
        return self._records

    async def _dialogues(self, cell: Planned) -> list[Dialogue]:
        """What is said in a cell, made before it begins; both legs of a setting say the same."""
        setting = cell.setting
        key, count = f"{self._plan.seed}/{setting.length}/{cell.repeat}", self._plan.conversations_at(setting)
        wanted = f"{key}/{count}"
        if self._prepared[0] != wanted:
            made = await self._says.dialogues(self._ruler, key, self._plan.sizes(setting), count)
            room = self._client.room
            fitting = [dialogue.first(self._plan.turns).within(room, self._ruler.chars_per_token) for dialogue in made]
            self._prepared = wanted, [dialogue for dialogue in fitting if dialogue.turns]
        return self._prepared[1]

    async def _warm_up(self, cell: Planned) -> None:
        """Two turns that are not recorded: they open the engines' connections to each other in both directions.

        Their transfers are waited for as well, or the first measured turn would be given them.
        """
        length = min(self._plan.lengths) if self._says.sized else OWN_LENGTHS_WARM_UP
        on = cell._replace(leg=ON, setting=cell.setting._replace(length=length))
        self._progress(Step(ON, on.setting, 0, 0, None))
        texts = [await self._ruler.text(f"warm-up/{length}/{turn}", tokens) for turn, tokens in ((1, length), (2, 150))]
        turns = tuple(Turn(({"role": "user", "content": text},), WARM_UP_REPLY_TOKENS) for text in texts)
        talk = Conversation(on, 0, f"bench-{self._plan.nonce}-warm-up-{length}", Dialogue(turns))
        for turn in turns:
            messages = talk.history.request(turn)
            before = await self._prefill.read(), await self._decode.read()
            outcome = await self._client.send(talk, messages, turn.reply_tokens)
            if outcome.error:
                raise EngineError(f"the warm-up at {length} tokens failed: {outcome.error}")
            await self._counted(before, outcome)
            talk.history.answered(messages, turn, outcome.reply.content)

    async def _measure(self, cell: Planned, dialogues: Sequence[Dialogue]) -> None:
        """All conversations of a cell, and the line that says that it was ended."""
        first, began = len(self._records), time.perf_counter()
        before = [await meter.read() for meter in (self._prefill, self._decode)]
        stats = [await meter.stats() for meter in (self._prefill, self._decode)]
        await self._load(cell, dialogues)
        seconds, records = time.perf_counter() - began, self._records[first:]
        after = [await m.since(b, expected=False) for m, b in zip((self._prefill, self._decode), before, strict=True)]
        counted = [moved(await m.stats(), s) for m, s in zip((self._prefill, self._decode), stats, strict=True)]
        self._sink(
            Cell(
                leg=cell.leg,
                setting=cell.setting,
                repeat=cell.repeat,
                requests=len(records),
                failed=sum(not record.ok for record in records),
                seconds=seconds,
                read_back=after[0].transfers,
                hand_off=after[1].transfers,
                engines=dict(zip(("prefill", "decode"), counted, strict=True)),
            )
        )

    async def _load(self, cell: Planned, dialogues: Sequence[Dialogue]) -> None:
        """Closed loop: so many at a time, one after another. Open loop: each at its time, whatever the servers do."""
        name = f"bench-{self._plan.nonce}-{cell.number}-{cell.leg}-{cell.setting.length}"
        talks = [Conversation(cell, index, f"{name}-{index}", dialogue) for index, dialogue in enumerate(dialogues)]
        start, setting = time.perf_counter(), cell.setting
        async with asyncio.TaskGroup() as group:
            if setting.concurrency:
                waiting = iter(talks)
                for _ in range(setting.concurrency):
                    group.create_task(self._one_after_another(waiting))
                return
            # The same arrivals in both legs.
            random, at = Random(f"{self._plan.seed}/arrivals/{cell.number}"), 0.0
            for talk in talks:
                at += random.expovariate(setting.rate) if setting.rate else 0.0
                group.create_task(self._converse(talk, start, at))

    async def _one_after_another(self, waiting: Any) -> None:
        for talk in waiting:
            await self._converse(talk)

    async def _converse(self, talk: Conversation, start: float | None = None, arrives: float = 0.0) -> None:
        """One conversation from its first turn to its last or its first failure; `start` is that of an open loop."""
        for number, turn in enumerate(talk.dialogue.turns, start=1):
            due = None
            if start is not None and (number == 1 or turn.due is not None):
                due = start + (arrives if turn.due is None else turn.due)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            elif number > 1:
                await asyncio.sleep(talk.cell.setting.think)
            if not await self._take(talk, number, turn, due):
                return

    async def _take(self, talk: Conversation, number: int, turn: Turn, due: float | None) -> bool:
        """One turn; whether it was answered."""
        step = Step(talk.cell.leg, talk.cell.setting, number, len(self._records), self._total)
        self._progress(step)
        messages = talk.history.request(turn)
        alone = talk.cell.setting.concurrency == 1
        before = (await self._prefill.read(), await self._decode.read()) if alone else (Reading(), Reading())
        outcome = await self._client.send(talk, messages, turn.reply_tokens)
        record = record_of(talk, number, turn, messages, outcome)
        if alone:
            prefill, decode = await self._counted(before, outcome)
            record = replace(
                record,
                read_back=prefill.transfers,
                hand_off=decode.transfers,
                prefill_phases=prefill.phases,
                decode_phases=decode.phases,
            )
        record = replace(record, due=due)
        self._records.append(record)
        self._sink(record)
        self._progress(replace(step, done=len(self._records), record=record))
        talk.history.answered(messages, turn, outcome.reply.content)
        return record.ok

    async def _counted(self, before: tuple[Reading, Reading], outcome: Outcome) -> tuple[Reading, Reading]:
        """What the engines counted for one request that was under way alone."""
        reused = outcome.report is not None and outcome.report.reused > 0
        prefill = await self._prefill.since(before[0], expected=reused)
        return prefill, await self._decode.since(before[1], expected=not outcome.error)
