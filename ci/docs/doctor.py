"""docs/doctor.md: what each probe looks at and what fixes it, and what each reason of a miss means."""

from itertools import groupby
from typing import Any

from ci.docs.text import table, template
from neuron_pd.doctor.cluster import CLUSTER
from neuron_pd.doctor.cluster.reasons import REASONS
from neuron_pd.doctor.findings import Probe
from neuron_pd.doctor.probes import MACHINE

COLUMNS = ("probe", "looks at", "what fixes it")


def page() -> str:
    return template("doctor").format(
        machine=_tables(MACHINE),
        cluster=_tables(CLUSTER),
        reasons=table(
            ("reason", "it means", "what to do"),
            [(f"`{reason}`", what, fix) for reason, (what, fix) in REASONS.items()],
        ),
    )


def _tables(probes: tuple[Probe[Any], ...]) -> str:
    """A heading and a table for each subject."""
    return "\n".join(
        f"### {subject}\n\n{table(COLUMNS, [(probe.name, probe.looks_at, probe.fixed_by) for probe in found])}"
        for subject, found in groupby(probes, lambda probe: probe.subject)
    )
