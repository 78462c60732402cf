"""`neuron-pd key`: API keys of the proxy."""

from collections.abc import Sequence
from pathlib import Path

import click

FILE = click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The proxy's --api-keys file.",
)


@click.group(name="key")
def command() -> None:
    """Make and list the API keys of the proxy."""


@command.command()
@FILE
@click.option("--tenant", required=True, help="Whose key: conversations of one tenant are never found by another.")
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="A model it may use, or a pattern. Repeatable. [all]"
)
@click.option("--label", default="", help="For people.")
def new(path: Path, tenant: str, models: Sequence[str], label: str) -> None:
    """Make a key, print it once, and add its digest to the file, which is made where there is none."""
    from neuron_pd.proxy.keyfile import add_key

    click.echo(add_key(path, tenant, models, label))


@command.command(name="list")
@FILE
def list_(path: Path) -> None:
    """Say which keys there are; to take one away, delete its lines."""
    from neuron_pd.proxy.keyfile import read_keys

    for entry in read_keys(path).entries:
        models = "all models" if entry.models is None else " ".join(entry.models)
        click.echo(f"{entry.digest.hex()[:12]}  {entry.tenant}  {models}  {entry.label}".rstrip())
