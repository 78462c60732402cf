"""All probes of a place, side by side: none raises out, and none keeps the others waiting."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from neuron_pd.doctor.findings import Finding, Place, Probe, failed, warning


@dataclass(frozen=True, slots=True)
class Result:
    """One finding of one probe."""

    subject: str
    probe: str
    finding: Finding

    def as_json(self) -> dict[str, Any]:
        finding = self.finding
        return {
            "subject": self.subject,
            "probe": self.probe,
            "about": finding.about,
            "verdict": finding.verdict.value,
            "seen": finding.seen,
            "fix": finding.fix,
        }


Done = Callable[[str], None]


def examine(probes: Sequence[Probe[Place]], place: Place, seconds: float, begun: Done = lambda _: None) -> list[Result]:
    """Every probe's findings, in the order of the probes. A probe that takes longer than `seconds` has failed."""
    looks = [_Look(probe, place) for probe in probes]
    deadline = time.monotonic() + seconds
    for look in looks:
        look.start()
    results = []
    for look in looks:
        begun(look.probe.name)
        look.join(max(0.0, deadline - time.monotonic()))
        results += [Result(look.probe.subject, look.probe.name, finding) for finding in look.findings(seconds)]
    return results


class _Look(threading.Thread, Generic[Place]):
    """A probe in a thread that nobody waits for when the program ends."""

    def __init__(self, probe: Probe[Place], place: Place) -> None:
        super().__init__(name=f"probe {probe.name}", daemon=True)
        self.probe = probe
        self._place = place
        self._found: list[Finding] | None = None

    def run(self) -> None:
        try:
            found = self.probe.look(self._place)
            self._found = [found] if isinstance(found, Finding) else list(found)
        except Exception as error:
            seen = f"could not be looked at: {type(error).__name__}: {error}"
            self._found = [warning(seen, "please report this, with the archive of `neuron-pd report`")]

    def findings(self, seconds: float) -> list[Finding]:
        if self._found is None:
            return [failed(f"no answer within {seconds:g} s", "look at what it asks by hand; --timeout allows more")]
        return self._found
