"""Options by topic: each topic is a function from its options' values to one settings object.

    @topic("Timeouts", click.option("--connect-timeout", default=10.0), …)
    def timeouts(connect_timeout: float, …) -> Phases: …

    @click.command(cls=TopicCommand)
    @timeouts
    def command(**values: Any) -> None:
        phases = timeouts.of(values)

`--help` shows the options of a topic under its title. A new option is one decorator and one argument of its topic.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import click

Made = TypeVar("Made")
Decorator = Callable[[Any], Any]


class Topic(Generic[Made]):
    """Decorates a command with its options; `of` picks their values and makes the settings."""

    def __init__(self, title: str, make: Callable[..., Made], options: tuple[Decorator, ...]) -> None:
        self.title = title
        self.names = frozenset(inspect.signature(make).parameters)
        self._make = make
        self._options = options

    def __call__(self, command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(self._options):
            command = option(command)
        command.__dict__.setdefault("topics", []).insert(0, self)
        return command

    def of(self, values: Mapping[str, Any]) -> Made:
        return self._make(**{name: values[name] for name in self.names})


def topic(title: str, *options: Decorator) -> Callable[[Callable[..., Made]], Topic[Made]]:
    """Make a topic of a function whose arguments are the names of the options' values."""

    def of(make: Callable[..., Made]) -> Topic[Made]:
        return Topic(title, make, options)

    return of


class TopicCommand(click.Command):
    """A command whose `--help` has one section a topic."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        titles = {name: one.title for one in getattr(self.callback, "topics", ()) for name in one.names}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(titles.get(parameter.name or "", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
