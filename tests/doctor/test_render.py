import io
import re

from rich.console import Console

from neuron_pd.doctor.examine import Result
from neuron_pd.doctor.findings import failed, not_applicable, ok, warning
from neuron_pd.doctor.render import render
from neuron_pd.doctor.verdict import Examination

FINDINGS = [
    Result("EFA", "EFA devices", not_applicable("no EFA devices, and none is needed")),
    Result("NIXL", "NIXL import", ok("NIXL 1.5.1 [nixl_cu13]")),
    Result("Cluster", "engines", failed("stopped: connection refused", "start it", "decode http://d:8200")),
    Result("Cluster", "clocks", warning("3 s behind", "keep them by NTP", "decode http://d:8200")),
]


def shown(examination: Examination, terminal: bool) -> str:
    stream = io.StringIO()
    render(examination, Console(file=stream, force_terminal=terminal, no_color=True, width=70, highlight=False))
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


def test_plain_lines() -> None:
    assert shown(Examination(["profile cpu", "http://x"], FINDINGS), terminal=False).splitlines() == [
        "not applicable EFA devices: no EFA devices, and none is needed",
        "ok             NIXL import: NIXL 1.5.1 [nixl_cu13]",
        "failed         engines decode http://d:8200: stopped: connection refused",
        "               → start it",
        "warning        clocks decode http://d:8200: 3 s behind",
        "               → keep them by NTP",
        "profile cpu and http://x: not ready (1 ok, 1 warning, 1 failed, 1 not applicable)",
    ]


def test_a_terminal_has_a_table_a_subject_that_fits() -> None:
    text = shown(Examination(["profile cpu"], FINDINGS[:3]), terminal=True)
    assert all(f"{subject}" in text for subject in ("EFA", "NIXL", "Cluster"))
    assert "✗ engines" in text
    assert "→ start it" in text
    assert "[nixl_cu13]" in text


def test_ready_is_without_a_failure() -> None:
    fine = Examination(["profile cpu"], [FINDINGS[1], FINDINGS[3]])
    assert fine.summary == "profile cpu: ready (1 ok, 1 warning)"
    assert fine.as_json()["ready"] is True
    assert [finding["probe"] for finding in fine.as_json()["findings"]] == ["NIXL import", "clocks"]
