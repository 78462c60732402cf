"""An examination as a whole: its results, and what follows from them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuron_pd import __version__
from neuron_pd.doctor.examine import Result
from neuron_pd.doctor.findings import Verdict


@dataclass(frozen=True, slots=True)
class Examination:
    """`of` says what was looked at: "profile cpu", "profile trn2.48xlarge as prefill", "http://127.0.0.1:8000"."""

    of: Sequence[str]
    results: Sequence[Result]

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.finding.verdict is Verdict.FAILED]

    @property
    def summary(self) -> str:
        """One line: whether it is ready, and how many findings there are of each kind."""
        counts = Counter(result.finding.verdict for result in self.results)
        counted = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        return f"{' and '.join(self.of)}: {'not ready' if self.failed else 'ready'} ({counted})"

    def as_json(self) -> dict[str, Any]:
        return {
            "neuron_pd": __version__,
            "of": list(self.of),
            "ready": not self.failed,
            "findings": [result.as_json() for result in self.results],
        }
