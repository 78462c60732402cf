"""docs/cli.md: every command, argument, option, default and environment variable, as Click has them."""

import inspect
from collections.abc import Iterator

import click

from ci.docs.text import table, template
from neuron_pd.cli import cli

PROGRAM = "neuron-pd"
NUMBERS = {
    type(click.INT): "INTEGER",
    type(click.FLOAT): "NUMBER",
    click.IntRange: "INTEGER",
    click.FloatRange: "NUMBER",
}


def page() -> str:
    """The page: what there is, then a section a command."""
    found = [entry for entry in commands() if len(entry[1]) > 1]
    listed = [(f"[`{' '.join(names)}`](#{'-'.join(names)})", short(command)) for command, names, _ in found]
    return template("cli").format(commands=table(("command", ""), listed), sections="".join(map(_section, found)))


Entry = tuple[click.Command, tuple[str, ...], click.Context]


def commands() -> Iterator[Entry]:
    """Every command, with its name in full and a context for it; groups before their own."""
    yield from _below(cli, (PROGRAM,), click.Context(cli, info_name=PROGRAM, auto_envvar_prefix="NEURON_PD"))


def _below(command: click.Command, names: tuple[str, ...], context: click.Context) -> Iterator[Entry]:
    yield command, names, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from _below(below, (*names, name), click.Context(below, info_name=name, parent=context))


def short(command: click.Command) -> str:
    return command.get_short_help_str(limit=200)


def options(command: click.Command, context: click.Context) -> list[click.Option]:
    """Its own; --help is the same everywhere."""
    found = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    return [one for one in found if "--help" not in one.opts and not one.hidden]


def _section(entry: Entry) -> str:
    command, names, context = entry
    usage = " ".join([*names, *command.collect_usage_pieces(context)])
    parts = [
        f"## {' '.join(names)}\n",
        f"`{usage}`\n",
        inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n",
    ]
    titles = {name: one.title for one in getattr(command.callback, "topics", ()) for name in one.names}
    topics: dict[str, list[click.Option]] = {}
    for option in options(command, context):
        topics.setdefault(titles.get(option.name or "", ""), []).append(option)
    for title, found in topics.items():
        rows = [_option(option, context) for option in found]
        heading = f"### {title or 'Other'}\n\n" if titles else ""
        parts.append(heading + table(("option", "default", "environment", "what"), rows))
    return "\n" + "\n".join(parts)


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str, str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else f" {metavar(option)}"
    default = option.get_default(context)
    shown = f"`{default}`" if option.show_default and default not in (None, ()) else ""
    return names + value, shown, ", ".join(f"`{name}`" for name in variables(option, context)), option.help or ""


def metavar(option: click.Option) -> str:
    """What an option takes, in words that do not depend on Click's release."""
    kind = option.type
    if option.metavar:
        return option.metavar
    if isinstance(kind, click.Choice):
        return "|".join(map(str, kind.choices))
    if isinstance(kind, click.IntRange | click.FloatRange):
        return f"{NUMBERS[type(kind)]} {_limits(kind.min, kind.max, kind.min_open)}"
    return NUMBERS.get(type(kind)) or kind.name.upper()


def _limits(low: float | None, high: float | None, above: bool) -> str:
    if high is None:
        return f"above {low}" if above else f"from {low}"
    return f"from {low} to {high}"


def variables(option: click.Option, context: click.Context) -> list[str]:
    """The environment variables that set an option, the first of them first."""
    if option.envvar:
        return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar)
    if not context.auto_envvar_prefix or not option.allow_from_autoenv or option.name is None:
        return []
    return [f"{context.auto_envvar_prefix}_{option.name.upper()}"]
