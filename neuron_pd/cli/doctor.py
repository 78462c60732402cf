"""`neuron-pd doctor`: what is wrong, and the line that fixes it."""

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from neuron_pd.cli.doctor_topics import cluster, is_named, machine
from neuron_pd.cli.topics import TopicCommand

if TYPE_CHECKING:
    from rich.console import Console

    from neuron_pd.doctor.cluster.place import Cluster
    from neuron_pd.doctor.site import Site
    from neuron_pd.doctor.verdict import Examination


class Looked(NamedTuple):
    """The machine, the cluster where there is one, and what was found."""

    site: "Site"
    cluster: "Cluster | None"
    examination: "Examination"


@click.command("doctor", cls=TopicCommand)
@machine
@cluster
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object.")
def command(as_json: bool, **values: Any) -> None:
    """Say what is wrong with this machine, or with a running cluster, and the line that fixes it.

    By itself it looks at this machine, and at what `neuron-pd up` runs on it. With --url it looks at that cluster, with
    --role at this machine in that role. Exit status 1 when something failed.
    """
    import json

    from rich.console import Console

    from neuron_pd.doctor.render import render

    found = look(values, Console(stderr=True)).examination
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        render(found, Console(highlight=False))
    raise SystemExit(1 if found.failed else 0)


def look(values: dict[str, Any], console: "Console") -> Looked:
    """Examine all that the options ask for."""
    from neuron_pd.doctor.cluster import CLUSTER
    from neuron_pd.doctor.examine import examine
    from neuron_pd.doctor.probes import MACHINE
    from neuron_pd.doctor.verdict import Examination

    of, results = [], []
    with console.status("looking") as status:

        def begun(name: str) -> None:
            status.update(f"looking: {name}")

        site, running = machine.of(values), cluster.of(values)
        if site.role is not None or not is_named(values):
            of.append(f"profile {site.instance.name}{f' as {site.role}' if site.role else ''}")
            results += examine(MACHINE, site, 2 * site.seconds, begun)
        if running is not None:
            of.append(running.proxy or running.engines[0].url)
            results += examine(CLUSTER, running, running.longest, begun)
    return Looked(site, running, Examination(of, results))
