"""What is written down of requests."""

from typing import TYPE_CHECKING

import click

from neuron_pd.cli.topics import topic

if TYPE_CHECKING:
    from neuron_pd.proxy.settings import Seen


@topic(
    "Seen from outside",
    click.option("--access-log", metavar="FILE",
                 help="One JSON object a request, without prompts, keys and ids; - is standard output."),
    click.option("--otlp-traces-endpoint", metavar="URL",
                 help="Send OpenTelemetry spans of turns and legs, http://HOST:4318/v1/traces."),
)  # fmt: skip
def seen(access_log: str | None, otlp_traces_endpoint: str | None) -> "Seen":
    from neuron_pd.proxy.settings import Seen

    return Seen(otlp_traces_endpoint, access_log)
