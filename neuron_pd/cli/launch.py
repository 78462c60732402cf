"""`neuron-pd launch`: the serve command of one role."""

from collections.abc import Sequence
from typing import Any

import click

from neuron_pd.errors import UsageError

BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
FORMATS = ("shell", "json")


@click.command("launch")
@click.option(
    "--role", envvar=["NEURON_PD_LAUNCH_ROLE", "ROLE"], metavar="prefill|decode", help="What the engine does."
)
@click.option(
    "--bidir",
    envvar=["NEURON_PD_LAUNCH_BIDIR", "BIDIR"],
    metavar="true|false",
    is_flag=False,
    default="true",
    flag_value="true",
    show_default=True,
    help="KV also flows from decode to prefill. The same on both.",
)
@click.option("--no-bidir", is_flag=True, help="The same as --bidir false.")
@click.option("--instance", default="cpu", show_default=True, help="Kind of machine: a profile's name, or its file.")
@click.option(
    "--model",
    envvar=["NEURON_PD_LAUNCH_MODEL", "MODEL"],
    default="tiny",
    show_default=True,
    metavar="DIR|tiny|smollm2",
    help="The model to serve.",
)
@click.option(
    "--served-model-name",
    "--served-name",
    "served_name",
    envvar=["NEURON_PD_LAUNCH_SERVED_MODEL_NAME", "SERVED_NAME"],
    help="Its name for clients.",
)
@click.option("--prefill-host", envvar=["NEURON_PD_LAUNCH_PREFILL_HOST", "P_IP"], help="The prefill node's address.")
@click.option("--decode-host", envvar=["NEURON_PD_LAUNCH_DECODE_HOST", "D_IP"], help="The decode node's address.")
@click.option("--host", help="Address to listen on. [this role's address, else 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [prefill 8100, decode 8200]")
@click.option("--side-channel-host", help="Address of NIXL's side channel. [this role's address, else 127.0.0.1]")
@click.option("--side-channel-port", type=click.IntRange(1, 65535), help="[prefill 5600, decode 5601]")
@click.option("--retention", default="lease", show_default=True, help="How decode keeps KV between turns.")
@click.option(
    "--prefix-caching/--no-prefix-caching",
    default=True,
    show_default=True,
    help="Off on prefill to measure as if its cache had been evicted.",
)
@click.option("--cores", help="CPU cores, like 0-3,6. [half of this machine's where both roles are on it, else all]")
@click.option("--kv-cache-gib", type=click.IntRange(1), help="Memory for KV, GiB. [the instance's]")
@click.option("--dtype", help="Precision. [the instance's]")
@click.option("--max-model-len", type=click.IntRange(1), help="Longest sequence, tokens. [the model's or instance's]")
@click.option(
    "--format", "format_", default="shell", show_default=True, metavar="|".join(FORMATS), help="How to print it."
)
@click.option("--exec", "become", is_flag=True, help="Become the server instead of printing the command.")
@click.argument("vllm_args", nargs=-1, metavar="[-- VLLM_ARGS...]")
def command(
    role: str | None,
    bidir: str,
    no_bidir: bool,
    instance: str,
    model: str,
    prefill_host: str | None,
    decode_host: str | None,
    format_: str,
    become: bool,
    vllm_args: Sequence[str],
    **given: Any,
) -> None:
    """Print the environment and the serve command of one role, or become the server.

    What follows -- is passed on to vLLM and wins over everything else.
    """
    from neuron_pd.launcher.preflight import check_model, check_vllm_args
    from neuron_pd.launcher.render import as_json, shell

    if format_ not in FORMATS:
        raise UsageError(f"unknown format {format_!r}: use {' or '.join(FORMATS)}")
    _check_role(role, instance)
    check_vllm_args(vllm_args)
    own = prefill_host if role == "prefill" else decode_host
    given["host"] = given["host"] or own
    given["side_channel_host"] = given["side_channel_host"] or own
    given["served_name"] = given["served_name"] or (model if "/" not in model else None)
    given["bidir"] = _boolean("--bidir", bidir) and not no_bidir
    check_model(model)
    spec = _spec(role, model, instance, {**given, "extra_args": tuple(vllm_args)})
    if become:
        _become(spec)
    click.echo(shell(spec) if format_ == "shell" else as_json(spec))


def _check_role(role: str | None, instance: str) -> None:
    """Before a model is made for it."""
    from neuron_pd.launcher.profile import ROLES, load_profile

    if role not in ROLES:
        raise UsageError(f"unknown role {role!r}: use {' or '.join(ROLES)}" if role else "say --role prefill or decode")
    load_profile(instance)


def _spec(role: str | None, model: str, instance: str, given: dict[str, Any]) -> Any:
    from neuron_pd.launcher.serve import serve_spec
    from neuron_pd.launcher.state import token_file
    from neuron_pd.models import resolve_model

    directory = resolve_model(model, progress=lambda text: click.echo(text, err=True))
    return serve_spec(str(role), directory, instance=instance, token_file=token_file(), **given)


def _become(spec: Any) -> None:
    from neuron_pd.launcher.preflight import check_engine
    from neuron_pd.launcher.replace import become_engine

    check_engine(spec)
    become_engine(spec)


def _boolean(option: str, text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise UsageError(f"{option} is {text!r}: use true or false")
    return BOOLEANS[text.lower()]
