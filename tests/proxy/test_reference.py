"""The proxy's reference page is made from its options and metrics: `python -m tests.proxy.test_reference`."""

from pathlib import Path
from typing import Any

import click

from neuron_pd.cli.proxy import command
from neuron_pd.proxy.app import Proxy
from neuron_pd.proxy.metrics import Counter, Histogram
from tests.proxy.conftest import running

PAGE = Path(__file__).parents[2] / "docs" / "proxy-reference.md"
HEAD = """\
# The proxy's options and metrics

Made from the program: `python -m tests.proxy.test_reference` writes this page anew. What they mean in use is on
[the proxy's page](proxy.md).

## Options of `neuron-pd proxy`

Each may also be given as an environment variable: `NEURON_PD_PROXY_` and the option's name, as in
`NEURON_PD_PROXY_CONNECT_TIMEOUT`.
"""
METRICS = """\
## Metrics

All names begin with `neuron_pd_proxy_`. Histograms have `_bucket`, `_sum` and `_count`.

| name | type | labels | what |
|---|---|---|---|
"""


def options() -> str:
    """The options by topic, as tables."""
    context = click.Context(command, info_name="proxy")
    titles = {name: topic.title for topic in command.callback.topics for name in topic.names}  # type: ignore[union-attr]
    sections: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            sections.setdefault(titles.get(parameter.name or "", "Other"), []).append(option_row(parameter, context))
    tables = [
        f"### {title}\n\n| option | default | what |\n|---|---|---|\n" + "".join(rows)
        for title, rows in sections.items()
    ]
    return "\n".join(tables)


def option_row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    metavar = "" if option.is_flag else f" {option.make_metavar(context)}"
    default = option.get_default(context)
    shown = f"`{default}`" if option.show_default and default not in (None, ()) else ""
    return f"| {names}{cell(metavar)} | {shown} | {cell(option.help or '')} |\n"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def metrics(proxy: Proxy) -> str:
    rows = []
    for member in vars(proxy.metrics).values():
        if isinstance(member, Counter):
            rows.append((f"{member.name}_total", "counter", member.labels, member.text))
        elif isinstance(member, Histogram):
            rows.append((member.name, "histogram", (), member.text))
    rows += [(gauge.name, "gauge", gauge.labels, gauge.text) for gauge in proxy.metrics.gauges]
    return "".join(
        f"| `{name.removeprefix('neuron_pd_proxy_')}` | {kind} | {', '.join(labels)} | {cell(text)} |\n"
        for name, kind, labels, text in sorted(rows)
    )


async def page() -> str:
    async with running() as cluster:
        return f"{HEAD}\n{options()}\n{METRICS}{metrics(cluster.proxy)}"


async def test_the_reference_is_what_the_program_has() -> None:
    assert PAGE.read_text() == await page(), "run: python -m tests.proxy.test_reference"


def test_every_metric_and_option_is_explained() -> None:
    context: Any = click.Context(command, info_name="proxy")
    unexplained = [one.name for one in command.get_params(context) if isinstance(one, click.Option) and not one.help]
    # A deadline says what it is for by its name.
    assert set(unexplained) <= {"connect_timeout", "prefill_timeout", "log_level", "help"}


if __name__ == "__main__":
    import asyncio

    PAGE.write_text(asyncio.run(page()))
