"""Who may use the proxy, and the key it shows engines."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuron_pd.cli.topics import topic
from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.proxy.settings import Access


@topic(
    "Access",
    click.option("--api-keys", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                 help="Only these keys come in (`neuron-pd key new` makes them); reread when the file changes. [open]"),
    click.option("--engine-api-key-env", metavar="NAME",
                 help="The environment variable with the engines' own API key; clients' keys then stop here."),
)  # fmt: skip
def access(api_keys: Path | None, engine_api_key_env: str | None) -> "Access":
    from neuron_pd.proxy.keyfile import read_keys
    from neuron_pd.proxy.settings import Access

    if api_keys is not None:
        read_keys(api_keys)
    engine_key = None
    if engine_api_key_env is not None and not (engine_key := os.environ.get(engine_api_key_env, "").strip()):
        raise UsageError(
            f"--engine-api-key-env {engine_api_key_env}: that variable is empty; put the engines' key in it"
        )
    return Access(api_keys, engine_key)
