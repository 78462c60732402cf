"""Options by topic."""

from dataclasses import dataclass
from typing import Any

import click
from click.testing import CliRunner

from neuron_pd.cli.topics import TopicCommand, topic


@dataclass(frozen=True)
class Box:
    width: int
    height: int


@topic("Size", click.option("--width", default=1, help="Across."), click.option("--tall", "height", default=2))
def size(width: int, height: int) -> Box:
    return Box(width, height)


@topic("Colour", click.option("--red", is_flag=True))
def colour(red: bool) -> str:
    return "red" if red else "blue"


@click.command(cls=TopicCommand)
@size
@colour
@click.option("--quiet", is_flag=True)
def command(quiet: bool, **values: Any) -> None:
    click.echo(f"{size.of(values)} {colour.of(values)} {quiet}")


def test_each_topic_makes_its_settings() -> None:
    assert CliRunner().invoke(command, ["--tall", "5", "--red"]).output == "Box(width=1, height=5) red False\n"


def test_help_has_a_section_a_topic() -> None:
    lines = CliRunner().invoke(command, ["--help"]).output.splitlines()
    places = [lines.index(title) for title in ("Size:", "Colour:", "Options:")]
    assert places == sorted(places)
    assert lines[places[0] + 1].split() == ["--width", "INTEGER", "Across."]
    assert any("--quiet" in line for line in lines[places[2] :])
