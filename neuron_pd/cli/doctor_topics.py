"""`neuron-pd doctor`'s options by topic; `neuron-pd report` takes the same."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuron_pd.cli.launch_topics import variables
from neuron_pd.cli.topics import topic
from neuron_pd.cli.values import base_urls
from neuron_pd.errors import UsageError
from neuron_pd.hosts.addresses import HERE

if TYPE_CHECKING:
    from neuron_pd.doctor.cluster.place import Cluster
    from neuron_pd.doctor.site import Site

ROLES = ("prefill", "decode", "proxy")


@topic(
    "This machine",
    click.option("--role", type=click.Choice(ROLES), help="What it is to be. [both roles and the proxy]"),
    click.option("--instance", help="Instance type, or a profile's file (*.yaml). [detected]"),
    click.option("--profile", "own", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
                 help="A profile, or a directory of them, of your own. Repeatable."),
    click.option("--prefill-host", envvar=variables("PREFILL_HOST", "P_IP"), help="The prefill node's address."),
    click.option("--decode-host", envvar=variables("DECODE_HOST", "D_IP"), help="The decode node's address."),
    click.option("--timeout", "seconds", default=60, show_default=True, type=click.IntRange(1, 3600), metavar="SECONDS",
                 help="For each child process that tries a library."),
)  # fmt: skip
def machine(
    role: str | None,
    instance: str | None,
    own: Sequence[Path],
    prefill_host: str | None,
    decode_host: str | None,
    seconds: int,
) -> "Site":
    from neuron_pd.doctor.site import Site
    from neuron_pd.profiles import Profiles

    profiles = Profiles(tuple(own))
    if instance is not None:
        profiles.instance(instance)
    hosts = {"prefill": prefill_host, "decode": decode_host}
    return Site(
        role=role,
        instance_name=instance,
        profiles=profiles,
        hosts={name: host for name, host in hosts.items() if host},
        seconds=seconds,
        ours=started_here(),
    )


@topic(
    "A cluster",
    click.option("--url", "urls", multiple=True, metavar="URL", callback=base_urls,
                 help="The proxy; or engines, each. Repeatable. [what `neuron-pd up` runs here]"),
    click.option("--prefill", multiple=True, metavar="URL", callback=base_urls,
                 help="A prefill engine, where no proxy names it."),
    click.option("--decode", multiple=True, metavar="URL", callback=base_urls, help="A decode engine, likewise."),
    click.option("--api-key-env", metavar="NAME", help="The environment variable with a client's key at the proxy."),
    click.option("--engine-api-key-env", metavar="NAME", help="That with the engines' own key."),
    click.option("--self-test/--no-self-test", default=True, show_default=True,
                 help="Send two turns of a conversation through the proxy, and see that the second is read back."),
)  # fmt: skip
def cluster(
    urls: Sequence[str],
    prefill: Sequence[str],
    decode: Sequence[str],
    api_key_env: str | None,
    engine_api_key_env: str | None,
    self_test: bool,
) -> "Cluster | None":
    from neuron_pd.doctor.cluster.place import Keys, look_at

    keys = Keys(token(), _key("--api-key-env", api_key_env), _key("--engine-api-key-env", engine_api_key_env))
    if not (urls or prefill or decode):
        urls = proxy_of_up()
    return look_at(urls, prefill, decode, keys=keys, self_test=self_test) if urls or prefill or decode else None


def token() -> str | None:
    """The control token of the environment; else that of what `neuron-pd up` and `launch` start here."""
    from neuron_pd.core.control import TOKEN_FILE_ENV, control_token
    from neuron_pd.launcher.state import state_dir

    kept = state_dir() / "control-token"
    return control_token() or (control_token({TOKEN_FILE_ENV: str(kept)}) if kept.is_file() else None)


def proxy_of_up() -> list[str]:
    """The proxy that was started here last, where one runs."""
    from neuron_pd.launcher.processes import running

    proxies = sorted((one for one in running() if one.kind == "proxy"), key=lambda one: one.created)
    return [f"http://{HERE}:{one.port}" for one in proxies[-1:]]


def started_here() -> frozenset[int]:
    """What neuron-pd started here, and all that descends from it."""
    import psutil

    from neuron_pd.launcher.processes import running

    found: set[int] = set()
    for started in running():
        process = started.process()
        if process is not None:
            try:
                found |= {started.pid, *(child.pid for child in process.children(recursive=True))}
            except psutil.Error:
                continue
    return frozenset(found)


def _key(option: str, name: str | None) -> str | None:
    if name is None:
        return None
    if not (key := os.environ.get(name, "").strip()):
        raise UsageError(f"{option} {name}: that variable is empty; put the key in it")
    return key


def is_named(values: dict[str, Any]) -> bool:
    """Whether a cluster was named on the command line."""
    return bool(values["urls"] or values["prefill"] or values["decode"])
