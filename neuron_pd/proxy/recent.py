"""The last turns, for the page at /ui: times, tokens and reasons, nothing of a client."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

KEPT = 256
SHOWN = 20


class Finished(NamedTuple):
    """One turn. `at` in seconds since 1970, durations in milliseconds; `first_token` None where it was not streamed."""

    at: float
    path: str
    outcome: str
    reason: str
    status: int
    prompt: int
    reused: int
    prefill: float
    first_token: float | None
    total: float

    def __str__(self) -> str:
        """The turn's line in the log."""
        prefill = f"Prefill done in {round(self.prefill)}ms" if self.prefill else "No prefill"
        return (
            f"{prefill} cache {self.outcome.upper()} path={self.path} reason={self.reason} reused={self.reused} "
            f"prompt={self.prompt} status={self.status} total={round(self.total)}ms"
        )


class Recent:
    """The last `KEPT` turns."""

    def __init__(self) -> None:
        self._turns: deque[Finished] = deque(maxlen=KEPT)

    def add(self, turn: Finished) -> None:
        self._turns.append(turn)

    def __iter__(self) -> Iterator[Finished]:
        return iter(self._turns)


def summary(turns: Iterable[Finished]) -> dict[str, Any]:
    """Rates and quantiles over the last `KEPT` turns, and the last few of them, the newest first."""
    latest = sorted(turns, key=lambda turn: turn.at)[-KEPT:]
    good = [turn for turn in latest if turn.status == 200]
    first = sorted(turn.first_token for turn in good if turn.first_token is not None)
    return {
        "turns": len(latest),
        "failed": len(latest) - len(good),
        "hits": sum(turn.outcome == "hit" for turn in good),
        "first_token_ms": {"p50": quantile(first, 0.5), "p95": quantile(first, 0.95)},
        "prefill_ms": {"p50": quantile(sorted(turn.prefill for turn in good if turn.prefill), 0.5)},
        "last": [turn._asdict() for turn in reversed(latest[-SHOWN:])],
    }


def quantile(ordered: list[float], share: float) -> float | None:
    """The smallest value that is not less than `share` of all; None for none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
