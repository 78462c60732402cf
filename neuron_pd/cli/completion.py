"""`neuron-pd completion`: what a shell needs to complete our commands and options."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_NEURON_PD_COMPLETE"  # Click's name, of the program's


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print what makes a shell complete commands and options.

    bash: `eval "$(neuron-pd completion bash)"` in ~/.bashrc; zsh: the same with zsh in ~/.zshrc; fish:
    `neuron-pd completion fish | source` in ~/.config/fish/config.fish.
    """
    from neuron_pd.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None, f"Click knows no completion for {shell}"
    click.echo(kind(cli, {}, "neuron-pd", VARIABLE).source())
