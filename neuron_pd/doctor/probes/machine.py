"""Which kind of machine this is."""

from typing import Final

from neuron_pd.doctor.findings import Finding, ok, probe, warning
from neuron_pd.doctor.site import Site
from neuron_pd.errors import UsageError

SAY: Final = "say `--instance`, or give a profile of your own (`--profile`)"


@probe("Machine", "instance", SAY)
def instance(site: Site) -> Finding:
    """the instance type, as `launch` would detect it, and its accelerators"""
    try:
        name = site.detected
    except UsageError as error:
        what, _, fix = str(error).partition(": ")
        return warning(what, fix)
    return ok(f"{name}: {site.machine.accelerators}")


PROBES: Final = (instance,)
