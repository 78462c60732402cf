"""`neuron-pd report`: all that helps to find a fault, in one archive."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from neuron_pd.cli.doctor_topics import cluster, machine
from neuron_pd.cli.topics import TopicCommand


@click.command("report", cls=TopicCommand)
@machine
@cluster
@click.option(
    "--logs",
    "log_paths",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="Logs to take along. Repeatable. [those that `neuron-pd logs` finds]",
)
@click.option("--unit", "units", multiple=True, metavar="NAME", help="A systemd unit, for its journal. Repeatable.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="The archive. [neuron-pd-report-TIME.tar.gz here]"
)
def command(log_paths: Sequence[Path], units: Sequence[str], out: Path | None, **values: Any) -> None:
    """Write what the doctor finds, versions, configuration and recent logs into one archive, without secrets.

    Control token, API keys and passwords are removed by their values and by what they look like. Prompts are in no log
    of ours; look through the archive before you pass it on all the same.
    """
    import os
    from datetime import datetime

    from rich.console import Console

    from neuron_pd.cli.doctor import look
    from neuron_pd.doctor.support import archive, contents

    path = out or Path(f"neuron-pd-report-{datetime.now():%Y%m%d-%H%M%S}.tar.gz")
    sources = _sources(log_paths, units)
    looked = look(values, Console(stderr=True))
    members = {
        "doctor.json": contents.examination(looked.examination),
        "versions.txt": contents.versions(),
        **contents.configuration(looked.site, _processes()),
        **contents.cluster(looked.cluster),
        **contents.machine(looked.site),
        **contents.logs(sources),
    }
    keys = [name for name in (values["api_key_env"], values["engine_api_key_env"]) if name]
    archive.write(path, members, _secrets(os.environ, keys))
    click.echo(f"{len(members)} files, secrets removed; look through them before you pass them on", err=True)
    click.echo(path.absolute())


def _sources(paths: Sequence[Path], units: Sequence[str]) -> Any:
    from neuron_pd.cli.logs import find
    from neuron_pd.errors import UsageError

    try:
        return find(paths, units)
    except UsageError:
        if paths or units:
            raise
        return []


def _processes() -> Iterator[dict[str, Any]]:
    """What runs here, with its command line."""
    import shlex

    import psutil

    from neuron_pd.launcher.processes import running

    for started in running():
        process = started.process()
        try:
            argv = process.cmdline() if process is not None else []
        except psutil.Error:
            argv = []
        yield {"name": started.name, "pid": started.pid, "port": started.port, "command": shlex.join(argv)}


def _secrets(environ: Mapping[str, str], keys: Sequence[str]) -> Any:
    """Everything secret that this user's commands know; `keys` are variables with a client's or the engines' key."""
    from neuron_pd.core.control import TOKEN_FILE_ENV
    from neuron_pd.doctor.support.secrets import secrets_of
    from neuron_pd.launcher.state import state_dir

    named = [Path(environ[TOKEN_FILE_ENV])] if environ.get(TOKEN_FILE_ENV) else []
    return secrets_of(environ, [*named, state_dir() / "control-token"], keys)
