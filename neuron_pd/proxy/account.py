"""What is said about a turn: response headers for the client, counts for the operator, one line for the log."""

import logging
from time import perf_counter as now  # the event loop's clock counts whole milliseconds
from time import time

from neuron_pd.core.decision import Path, Reason
from neuron_pd.core.transfer import TurnReport
from neuron_pd.proxy.http import Header
from neuron_pd.proxy.legs import Prefilled
from neuron_pd.proxy.metrics import Metrics
from neuron_pd.proxy.recent import Finished
from neuron_pd.proxy.tracing import NO_SPAN, Span
from neuron_pd.proxy.ways import Direct, Offered

log = logging.getLogger("neuron_pd.proxy")

CLIENT_LEFT = 499


class Account:
    """One turn, as it went. `reason` says why nothing was reused, or how it was; `phase` is the leg under way."""

    phase = "prefill"
    reason = "none"
    status = 0
    report: TurnReport | None = None
    acquire_ms = prefill_ms = first_token_ms = 0.0
    alone = False
    moved = False
    offered = False  # P was given blocks, and is of a kind that does not say what it did with them
    streaming = False
    _decode_began = 0.0

    def __init__(self, metrics: Metrics, span: Span = NO_SPAN) -> None:
        self._metrics = metrics
        self.span = span
        self._started = now()

    @property
    def path(self) -> str:
        """The way the turn was served, a metric label."""
        if self.status != 200:
            return "failed"
        if self.alone:
            return "alone"
        if self.report is None:
            return "offered" if self.offered else "recompute"
        return self.report.path

    @property
    def outcome(self) -> str:
        report = self.report
        if report is None and self.offered:
            return "offered"
        return "hit" if report is not None and (report.reused > 0 or report.path == Path.DIRECT) else "miss"

    def acquired(self, began: float) -> None:
        """The question to D that began at `began` is answered."""
        self.acquire_ms = (now() - began) * 1000
        self._metrics.acquire.observe(self.acquire_ms / 1000)

    def served_directly(self, turn: Offered, mode: Direct) -> None:
        """D computes the rest of the prompt: what is new is estimated."""
        self.reason = "asked_for" if mode is Direct.ALWAYS else Reason.COST.value
        held = turn.held
        self.report = TurnReport(Path.DIRECT.value, self.reason, held + turn.new, held, 0, reused=0, local=held)

    def prefilled(self, began: float, answer: Prefilled) -> float:
        """P answered the leg that began at `began`: how many seconds it took."""
        self.prefill_ms = (now() - began) * 1000
        self._metrics.prefill.observe(self.prefill_ms / 1000)
        report = self.report = answer.report
        if answer.params is None:
            self.reason = "no_transfer_params"
        elif report is None:
            self.reason = self.reason or "no_report"
        else:
            self.reason = self.reason or report.reason
            self._metrics.prompt_tokens(report)
        return self.prefill_ms / 1000

    def decoding(self) -> None:
        """D is being asked."""
        self.phase, self._decode_began = "decode", now()

    def first_token(self) -> float:
        """The first piece of D's stream is there: seconds since D was asked."""
        moment = now()
        self.first_token_ms = (moment - self._started) * 1000
        self._metrics.first_token.observe(moment - self._started)
        return moment - self._decode_began

    def began_answer(self, status: int, streamed: bool) -> None:
        """D's head is there."""
        self._metrics.streams += streamed - self.streaming
        self.status, self.streaming = status, streamed
        self._metrics.first_byte.observe(now() - self._started)

    def headers(self) -> list[Header]:
        """What the client is told: times in milliseconds, and how P served its leg, in tokens."""
        timing = b"acquire;dur=%.1f, prefill;dur=%.1f" % (self.acquire_ms, self.prefill_ms)
        report = self.report
        if report is None:
            return [(b"server-timing", timing)]
        said = (
            f"path={report.path}; reason={report.reason}; prompt={report.prompt}; offered={report.offered}; "
            f"verified={report.verified}; reused={report.reused}; local={report.local}"
        )
        if self.reason != report.reason:  # the proxy's own, which P does not know
            said += f"; offer={self.reason}"
        return [(b"server-timing", timing), (b"x-neuron-pd-turn", said.encode("ascii", "replace").replace(b"\n", b" "))]

    def facts(self) -> dict[str, str | int | float]:
        """The turn for spans and the access log."""
        report = self.report
        facts: dict[str, str | int | float] = {"path": self.path, "reason": self.reason, "outcome": self.outcome}
        facts |= {"acquire_ms": round(self.acquire_ms, 1), "prefill_ms": round(self.prefill_ms, 1)}
        if self.first_token_ms:
            facts["first_token_ms"] = round(self.first_token_ms, 1)
        if report is not None:
            facts |= {"prompt": report.prompt, "offered": report.offered, "reused": report.reused}
        return facts

    def close(self) -> None:
        """Count and log the turn: times, tokens and reasons, nothing of its client."""
        moment = now()
        seconds = moment - self._started
        report, path, outcome = self.report, self.path, self.outcome
        prompt, reused = (report.prompt, report.reused) if report is not None else (0, 0)
        turn = Finished(
            time(), path, outcome, self.reason, self.status, prompt, reused,
            self.prefill_ms, self.first_token_ms or None, seconds * 1000,
        )  # fmt: skip
        metrics = self._metrics
        metrics.streams -= self.streaming
        metrics.recent.add(turn)
        metrics.turns.add(path)
        metrics.turn.observe(seconds)
        if self._decode_began and self.status == 200:
            metrics.decode.observe(moment - self._decode_began)
        if self.moved:
            metrics.moved.add()
        if not self.alone and (self.prefill_ms or path == Path.DIRECT):
            metrics.reuse.add(outcome, self.reason)
        log.info(turn)
