"""The command line: one module per command, imported only when that command runs."""

import sys
from importlib import import_module

import click

from neuron_pd import __version__
from neuron_pd.errors import NeuronPDError, UsageError

COMMANDS = {
    "demo": "Show it all on this machine: real engines, both directions, the gain measured.",
    "up": "Run a prefill engine, a decode engine and the proxy on this machine.",
    "launch": "Print, or become, the serve command of one role.",
    "cluster": "Print what runs both roles and the proxy: Kubernetes, Helm, compose.",
    "proxy": "Run the KV-aware multi-turn proxy.",
    "key": "Make and list API keys of the proxy.",
    "plan": "Say what reuse brings before it is bought; simulate it at scale.",
    "bench": "Measure TTFT with and without reuse, and report it.",
    "doctor": "Say what is wrong with a machine or a cluster, and the line that fixes it.",
    "logs": "Show what the servers wrote: read-backs, declines, transfers.",
    "report": "Put all that helps to find a fault into one archive, without secrets.",
    "model": "Make an embedded model locally.",
    "cleanup": "Stop what `up` or `launch` started.",
    "completion": "Print what a shell needs to complete commands and options.",
}


INTERRUPTED = 130  # what shells report for SIGINT


class LazyCommands(click.Group):
    """A group that knows its commands' names and first lines without importing them: `--help` stays instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        loaded = import_module(f"neuron_pd.cli.{cmd_name}").command
        assert isinstance(loaded, click.Command)
        return loaded

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyCommands, context_settings={"auto_envvar_prefix": "NEURON_PD", "help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="neuron-pd")
def cli() -> None:
    """Prefill/decode disaggregated serving for agents: KV that flows both ways in vLLM over NIXL."""


def main() -> None:
    """Run the command line. What is wrong becomes one line on stderr: exit status 2 for usage, 1 otherwise."""
    try:
        status = cli(prog_name="neuron-pd", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        help_wanted.show()
        status = 2
    except click.ClickException as error:
        status = _say(error.format_message(), error.exit_code)
    except click.Abort:
        status = INTERRUPTED
    except NeuronPDError as error:
        status = _say(str(error), 2 if isinstance(error, UsageError) else 1)
    sys.exit(status)


def _say(message: str, status: int) -> int:
    print(f"neuron-pd: error: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    return status
