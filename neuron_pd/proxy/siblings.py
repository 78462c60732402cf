"""What several workers of one proxy say to each other, over private sockets in a folder that only this user can enter.

Whichever worker a scraper, an operator or a balancer reaches, it answers for all of them: it asks the others for their
counts and their readiness, and passes on what changes the pools. Calls are also kept in a journal, so that a worker
which takes a dead one's place catches up.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from neuron_pd.proxy.http import Client, Header, Origin, Request, Timeouts, UpstreamError

PATIENCE = Timeouts(1.0, 1.0, 1.0)
JOURNAL = "calls.jsonl"
STATE, PART = b"/state", b"/part"  # readiness and counts; a share of the live page


@dataclass(frozen=True, slots=True)
class Seat:
    """Which worker this is, of how many, and the folder with their sockets. A proxy of one process has no folder."""

    index: int = 0
    count: int = 1
    folder: Path | None = None

    @property
    def own(self) -> Path | None:
        """Where this worker listens for the others."""
        return self.folder / f"{self.index}.sock" if self.folder is not None else None


class Siblings:
    """The other workers; none of them where the proxy is one process."""

    def __init__(self, seat: Seat, client: Client) -> None:
        self._seat, self._client = seat, client
        self._origins: list[Origin] = []
        if seat.folder is not None:
            others = (index for index in range(seat.count) if index != seat.index)
            self._origins = [Origin(f"{seat.folder}/{index}.sock", 0) for index in others]

    async def states(self, target: bytes = STATE) -> list[dict[str, Any]]:
        """What the others say of themselves; one that gives no answer, because it is being replaced, is left out."""
        answers = await asyncio.gather(*(self._ask(origin, b"GET", target, [], b"") for origin in self._origins))
        return [orjson.loads(answer) for answer in answers if answer is not None]

    async def pass_on(self, request: Request, headers: list[Header]) -> None:
        """Let the others carry out the call that this worker has carried out, and those that take their places."""
        if self._seat.folder is None:
            return
        call = {"method": request.method.decode(), "target": request.target.decode(), "body": request.body.decode()}
        with (self._seat.folder / JOURNAL).open("ab") as journal:
            journal.write(orjson.dumps(call) + b"\n")
        calls = (self._ask(origin, request.method, request.target, headers, request.body) for origin in self._origins)
        await asyncio.gather(*calls)

    def journal(self) -> Iterator[Request]:
        """The calls that were carried out before this worker began."""
        path = None if self._seat.folder is None else self._seat.folder / JOURNAL
        if path is None or not path.exists():
            return
        for line in path.read_bytes().splitlines():
            call = orjson.loads(line)
            yield Request(call["method"].encode(), call["target"].encode(), [], call["body"].encode(), keep_alive=False)

    async def _ask(
        self, origin: Origin, method: bytes, target: bytes, headers: list[Header], body: bytes
    ) -> bytes | None:
        try:
            return (await self._client.ask(origin, method, target, headers, body, PATIENCE)).body
        except UpstreamError:
            return None
