"""Keeps the roster up to date: watches every source, and the file that may name more of them."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path

from neuron_pd.errors import UsageError
from neuron_pd.proxy.pools.file import read_pools
from neuron_pd.proxy.pools.roster import Roster
from neuron_pd.proxy.pools.source import Plan, Source, SourceError

log = logging.getLogger("neuron_pd.proxy")

FIRST_SECONDS = 5.0  # that a start waits for sources to say who they know
AGAIN_SECONDS = 5.0  # after a source could not be read
LOOK_SECONDS = 1.0  # between two looks at the file
OPTIONS = "options"


class Discovery:
    """`start` says what is known at once; then sources are watched until `stop`."""

    def __init__(self, roster: Roster, given: Plan, file: Path | None, again: float = AGAIN_SECONDS) -> None:
        self._roster = roster
        self._given = given
        self._file = file
        self._again = again
        self._reload = asyncio.Event()
        self._watching: dict[Source, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._heard: dict[Source, asyncio.Event] = {}

    async def start(self) -> None:
        """UsageError when the file is not as it should be. Waits a little for the first word of every source."""
        named = read_pools(self._file) if self._file is not None else Plan()
        self._roster.says(OPTIONS, self._given.members)
        self._watch(self._given.sources)
        if self._file is not None:
            self._adopt(self._file, named)
            self._following = asyncio.create_task(self._follow(self._file))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS):
                for heard in self._heard.values():
                    await heard.wait()

    async def stop(self) -> None:
        tasks = [*self._watching.values(), *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def reload(self) -> None:
        """Read the file again, whether it changed or not."""
        self._reload.set()

    def _adopt(self, file: Path, plan: Plan) -> None:
        """Members change at once; sources that are no longer named are forgotten."""
        self._roster.says(str(file), plan.members)
        keep = {*plan.sources, *self._given.sources}
        for source in [one for one in self._watching if one not in keep]:
            self._watching.pop(source).cancel()
            del self._heard[source]
            self._roster.forget(source.name)
        self._watch(plan.sources)

    def _watch(self, sources: Iterable[Source]) -> None:
        for source in sources:
            if source not in self._watching:
                self._heard[source] = asyncio.Event()
                self._watching[source] = asyncio.create_task(self._listen(source))

    async def _listen(self, source: Source) -> None:
        while True:
            try:
                async for members in source.watch():
                    self._roster.says(source.name, members)
                    self._heard[source].set()
            except SourceError as error:
                self._roster.fails(source.name, str(error))
            except Exception as error:
                log.exception("watching %s failed", source.name)
                self._roster.fails(source.name, f"{type(error).__name__}: {error}")
            self._heard[source].set()
            await asyncio.sleep(self._again)

    async def _follow(self, file: Path) -> None:
        """Read the file when it changed, or when told to; one that cannot be used changes nothing."""
        seen = _stamp(file)
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reload.wait(), LOOK_SECONDS)
            stamp = _stamp(file)
            if stamp == seen and not self._reload.is_set():
                continue
            seen = stamp
            self._reload.clear()
            try:
                plan = read_pools(file)
            except UsageError as error:
                self._roster.fails(str(file), str(error))
            else:
                self._adopt(file, plan)
                log.info("%s: read, %d engines named", file, len(plan.members))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """What changes when a file does; a mounted ConfigMap is swapped by its link, which changes the inode."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
