"""Every command of the pages is run by a test or is named in commands.yaml with why it cannot be.

Beside that, every command of ours is parsed by the program: its options exist and take what they are given.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from neuron_pd.cli import cli
from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell, program
from tests.docs.pages import ROOT, Command, blocks, commands, named, pages

shell = shell_fixture
HERE = "here"
KNOWN: dict[str, Any] = yaml.safe_load((Path(__file__).with_name("commands.yaml")).read_text())
COMMANDS = list(dict.fromkeys(command for page in pages() for command in commands(page)))


def patterns() -> Iterator[tuple[str, str]]:
    """Each pattern, and what stands over it in commands.yaml."""
    yield from ((pattern, HERE) for pattern in KNOWN["here"])
    for part in ("elsewhere", "not"):
        for over, found in KNOWN[part].items():
            yield from ((pattern, over) for pattern in found)


def known_as(command: Command) -> str | None:
    """The pattern that a command is known by: the longest that it begins with, with its page before it or without."""
    found = [
        pattern for pattern, _ in patterns() if f"{command}".startswith(pattern) or command.text.startswith(pattern)
    ]
    return max(found, key=len, default=None)


OVER = dict(patterns())
RUN_HERE = sorted({pattern.partition(": ")[0] for pattern in KNOWN["here"]})


def test_every_command_is_run_or_named_with_why_not() -> None:
    assert [str(one) for one in COMMANDS if known_as(one) is None] == [], "put them into tests/docs/commands.yaml"


def test_everything_that_is_named_is_in_a_page() -> None:
    assert set(OVER) - {known_as(one) for one in COMMANDS} == set(), "take them out of tests/docs/commands.yaml"


@pytest.mark.parametrize("test", KNOWN["elsewhere"])
def test_what_another_test_runs_is_there_or_its_page_is(test: str) -> None:
    text = (ROOT / test).read_text()
    for pattern in KNOWN["elsewhere"][test]:
        page, _, command = pattern.rpartition(": ")
        last = command.split()[-1].rpartition(".")[2]
        assert last in text or (page and Path(page).name in text), pattern


@pytest.mark.parametrize("page", RUN_HERE)
def test_the_commands_of_a_page_run(page: str, shell: Shell) -> None:
    found = [one for one in COMMANDS if one.page == page and OVER.get(known_as(one) or "") == HERE]
    assert found
    program(shell.home)
    (shell.home / "DIR").symlink_to(shell.model())  # "your model's directory"
    text = "\n".join(["set -euo pipefail", *(one.text for one in found)])
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=shell.home,
        env={**shell.environment, "PATH": f"{shell.home}:{shell.environment['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", pages(), ids=named)
def test_the_shell_of_the_pages_is_shell(page: Path) -> None:
    for block in blocks(page):
        subprocess.run(["bash", "-n", "-c", block], check=True)


SCHEMATIC = re.compile(r"…|\[-")
OURS = [one for one in COMMANDS if re.match(r"([A-Z_]+=\S+ )*neuron-pd ", one.text) and not SCHEMATIC.search(one.text)]


@pytest.mark.parametrize("command", OURS, ids=str)
def test_what_a_page_says_to_type_is_what_the_program_takes(command: Command) -> None:
    for part in re.split(r" (?:&&|\|) ", command.bare.rstrip("& ")):
        words = shlex.split(re.sub(r"\s[<>].*$", "", part))
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words[0] == "neuron-pd":
            parse(cli, "neuron-pd", words[1:])


def parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    """Read the words as the program does, and run nothing. click.UsageError for what it would refuse."""
    try:
        context = command.make_context(name, list(words), parent=parent)
    except click.BadParameter as refused:
        if "does not exist" in refused.message:  # a file of the reader's
            return
        raise
    rest = [*context._protected_args, *context.args]
    if isinstance(command, click.Group) and rest:
        found, below, further = command.resolve_command(context, rest)
        assert found is not None
        assert below is not None
        parse(below, found, further, context)


def test_an_option_that_is_not_there_is_seen() -> None:
    with pytest.raises(click.UsageError, match="No such option"):
        parse(cli, "neuron-pd", ["proxy", "--none"])
    with pytest.raises(click.UsageError, match="No such command"):
        parse(cli, "neuron-pd", ["plan", "none"])
