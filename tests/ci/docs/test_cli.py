import click
import pytest
from click.testing import CliRunner

from ci.docs import cli
from neuron_pd.cli import COMMANDS

FOUND = {" ".join(names): (command, context) for command, names, context in cli.commands()}
PAGE = cli.page()


def test_every_command_is_on_the_page() -> None:
    assert {f"neuron-pd {name}" for name in COMMANDS} <= set(FOUND)
    headings = {line.removeprefix("## ") for line in PAGE.splitlines() if line.startswith("## ")}
    assert headings == set(FOUND) - {cli.PROGRAM}


@pytest.mark.parametrize("name", FOUND)
def test_a_command_and_each_of_its_options_says_what_it_does(name: str) -> None:
    command, context = FOUND[name]
    assert command.help
    assert [option.opts[0] for option in cli.options(command, context) if not option.help] == []


def test_the_variables_are_what_click_reads() -> None:
    """Setting each named variable sets the option."""
    command, context = FOUND["neuron-pd proxy"]
    (option,) = (one for one in cli.options(command, context) if one.name == "drain_seconds")
    (variable,) = cli.variables(option, context)
    assert (variable, f"`{variable}`" in PAGE) == ("NEURON_PD_PROXY_DRAIN_SECONDS", True)
    outcome = CliRunner(env={variable: "x"}).invoke(cli.cli, ["proxy"], auto_envvar_prefix="NEURON_PD")
    assert "'x' is not a valid float range" in outcome.output


def test_launch_also_reads_the_articles_variables() -> None:
    command, context = FOUND["neuron-pd launch"]
    (role,) = (one for one in cli.options(command, context) if one.name == "role")
    assert cli.variables(role, context) == ["NEURON_PD_LAUNCH_ROLE", "ROLE"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (click.Option(["--a"], type=click.IntRange(1, 5)), "INTEGER from 1 to 5"),
        (click.Option(["--a"], type=click.FloatRange(0)), "NUMBER from 0"),
        (click.Option(["--a"], type=click.FloatRange(0, min_open=True)), "NUMBER above 0"),
        (click.Option(["--a"], type=click.Choice(["x", "y"])), "x|y"),
        (click.Option(["--a"], type=int), "INTEGER"),
        (click.Option(["--a"], type=click.Path(dir_okay=False)), "FILE"),
        (click.Option(["--a"], metavar="URL"), "URL"),
        (click.Option(["--a"]), "TEXT"),
    ],
)
def test_what_an_option_takes(option: click.Option, words: str) -> None:
    assert cli.metavar(option) == words
