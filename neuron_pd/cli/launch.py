"""`neuron-pd launch`: the serve command of one role."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.launcher.request import Request
    from neuron_pd.launcher.serve import ServeSpec
    from neuron_pd.profiles import Profiles

BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
FORMATS = ("shell", "json", "systemd", "docker", "k8s")
PORT = click.IntRange(1, 65535)


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
@click.option("--instance", help="Instance type, or a profile's file (*.yaml). [detected; cpu without an accelerator]")
@click.option(
    "--profile",
    "own",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    metavar="FILE|DIR",
    help="Profiles of your own, of instances or models; they win over those that ship.",
)
@click.option(
    "--model",
    envvar=["NEURON_PD_LAUNCH_MODEL", "MODEL"],
    default="tiny",
    show_default=True,
    metavar="DIR|NAME|tiny|smollm2",
    help="The model to serve: a directory, a hub's owner/name, or an embedded one.",
)
@click.option(
    "--served-name",
    "--served-model-name",
    "served_name",
    envvar=["NEURON_PD_LAUNCH_SERVED_NAME", "SERVED_NAME"],
    help="Its name for clients. [the model's]",
)
@click.option("--prefill-host", envvar=["NEURON_PD_LAUNCH_PREFILL_HOST", "P_IP"], help="The prefill node's address.")
@click.option("--decode-host", envvar=["NEURON_PD_LAUNCH_DECODE_HOST", "D_IP"], help="The decode node's address.")
@click.option("--host", help="Address to listen on. [this role's, else 127.0.0.1]")
@click.option("--port", type=PORT, help="Port to listen on. [prefill 8100, decode 8200]")
@click.option("--side-channel-host", help="Address of NIXL's side channel. [this role's, else 127.0.0.1]")
@click.option("--side-channel-port", type=PORT, help="First of one for each data-parallel rank. [the instance's]")
@click.option("--connector", default="neuron-pd", show_default=True, metavar="neuron-pd|upstream",
              help="neuron-pd's, or vLLM's own without anything of ours.")  # fmt: skip
@click.option("--retention", default="lease", show_default=True, metavar="lease|pin",
              help="Between turns decode pins nothing, or pins blocks until their TTL ends.")  # fmt: skip
@click.option(
    "--prefix-caching/--no-prefix-caching",
    default=True,
    show_default=True,
    help="Off on prefill to measure as if its cache had been evicted.",
)
@click.option("--cores", help="Logical NeuronCores, GPUs or CPU cores, like 0-3,6. [chosen]")
@click.option("--engines", type=click.IntRange(1), default=1, show_default=True, help="Engines of this role here.")
@click.option("--index", type=click.IntRange(0), help="Which of them, from 0. [all; --exec needs one]")
@click.option("--kv-cache-gib", type=click.IntRange(1), help="Memory for KV on CPU, GiB. [the instance's]")
@click.option("--dtype", help="Precision. [the model's or instance's]")
@click.option("--max-model-len", type=click.IntRange(1), help="Longest sequence, tokens. [the model's or instance's]")
@click.option("--image", help="Container image, for docker and k8s. [the instance's]")
@click.option(
    "--format", "format_", default="shell", show_default=True, metavar="|".join(FORMATS), help="How to print it."
)
@click.option("--exec", "become", is_flag=True, help="Become the server instead of printing the command.")
@click.argument("vllm_args", nargs=-1, metavar="[-- VLLM_FLAGS...]")
def command(
    bidir: str,
    no_bidir: bool,
    instance: str | None,
    own: Sequence[Path],
    model: str,
    index: int | None,
    format_: str,
    become: bool,
    vllm_args: Sequence[str],
    **given: Any,
) -> None:
    """Print the environment and the serve command of one role, or become the server.

    What follows -- is passed on to vLLM and wins over everything else; JSON objects are merged key by key.
    """
    from neuron_pd.launcher.request import check_request

    if format_ not in FORMATS:
        raise UsageError(f"unknown format {format_!r}: use {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    given["bidir"] = _boolean("--bidir", bidir) and not no_bidir
    given["extra_args"] = tuple(vllm_args)
    request = _request(model, instance, own, index, given)
    check_request(request)
    specs = _specs(request, index, format_)
    if become:
        _become(specs)
    from neuron_pd.launcher.formats import FORMATS as RENDER

    click.echo(RENDER[format_](specs))


def _request(
    model: str, instance: str | None, own: Sequence[Path], index: int | None, given: dict[str, Any]
) -> "Request":
    from neuron_pd.launcher.request import Request
    from neuron_pd.profiles import Profiles

    if not given["role"]:
        raise UsageError("say --role prefill or decode")
    profiles = Profiles(tuple(own))
    said = {name: value for name, value in given.items() if value is not None} | {"index": index or 0}
    return Request(model=model, card=model, instance=instance or _detected(profiles), profiles=profiles, **said)


def _detected(profiles: "Profiles") -> str:
    from neuron_pd.hosts.machine import observe
    from neuron_pd.profiles.detect import instance_of

    return instance_of(observe(), profiles)


def _specs(request: "Request", index: int | None, format_: str) -> "list[ServeSpec]":
    """One engine, or each of several. The model is made when all that was said has proved possible."""
    from dataclasses import replace

    from neuron_pd.launcher.formats.kubernetes import POD_IP
    from neuron_pd.launcher.preflight import check_model
    from neuron_pd.launcher.serve import check_against_peer, plan
    from neuron_pd.launcher.state import token_file
    from neuron_pd.models import NAMES, resolve_model

    check_model(request.model)
    if format_ in ("docker", "k8s"):
        request = replace(request, python="python3")
    if format_ == "k8s" and request.own_host is None:
        request = replace(
            request, host=request.host or "0.0.0.0", side_channel_host=request.side_channel_host or POD_IP
        )
    if request.model in NAMES:
        plan(request)
    directory = resolve_model(request.model, progress=lambda text: click.echo(text, err=True))
    name = request.served_name or (request.model if "/" not in request.model else None)
    request = replace(request, model=directory, served_name=name, token_file=token_file())
    numbers = [request.index] if index is not None else range(request.engines)
    specs = [plan(replace(request, index=number)) for number in numbers]
    for spec in specs:
        check_against_peer(spec)
    return specs


def _become(specs: "Sequence[ServeSpec]") -> None:
    from neuron_pd.launcher.packages import vllm_version
    from neuron_pd.launcher.preflight import check_engine
    from neuron_pd.launcher.replace import become_engine

    if len(specs) > 1:
        raise UsageError(f"--exec becomes one of {len(specs)} engines: say which with --index")
    check_engine(specs[0])
    become_engine(specs[0].for_vllm(vllm_version()))


def _boolean(option: str, text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise UsageError(f"{option} is {text!r}: use true or false")
    return BOOLEANS[text.lower()]
