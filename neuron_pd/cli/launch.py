"""`neuron-pd launch`: the serve command of one role."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from neuron_pd.cli.launch_topics import engine, machine, network, output, transfer
from neuron_pd.cli.topics import TopicCommand
from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.launcher.request import Request
    from neuron_pd.launcher.serve import ServeSpec


@click.command("launch", cls=TopicCommand)
@engine
@transfer
@network
@machine
@output
@click.argument("vllm_args", nargs=-1, metavar="[-- VLLM_FLAGS...]")
def command(vllm_args: Sequence[str], **values: Any) -> None:
    """Print the environment and the serve command of one role, or become the server.

    What follows -- is passed on to vLLM and wins over everything else; JSON objects are merged key by key.
    """
    from neuron_pd.launcher.formats import FORMATS
    from neuron_pd.launcher.request import check_request

    request = _request(values, tuple(vllm_args))
    check_request(request)
    specs = _specs(request, values["index"], values["format_"])
    if values["become"]:
        _become(specs)
    click.echo(FORMATS[values["format_"]](specs))


def _request(values: dict[str, Any], vllm_args: tuple[str, ...]) -> "Request":
    from neuron_pd.launcher.request import Request

    said = output.of(values) | engine.of(values) | transfer.of(values) | network.of(values) | machine.of(values)
    return Request(**said, card=said["model"], extra_args=vllm_args)


def _specs(request: "Request", index: int | None, format_: str) -> "list[ServeSpec]":
    """One engine, or each of several. The model is made when all that was said has proved possible."""
    from dataclasses import replace

    from neuron_pd.launcher.cluster import in_pods
    from neuron_pd.launcher.preflight import check_model
    from neuron_pd.launcher.serve import check_against_peer, plan
    from neuron_pd.launcher.state import token_file
    from neuron_pd.models import NAMES, resolve_model

    check_model(request.model)
    if format_ in ("docker", "k8s"):
        request = replace(request, python="python3")
    if format_ == "k8s":
        request = in_pods(request)
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
    from neuron_pd.hosts.packages import vllm_version
    from neuron_pd.launcher.preflight import check_engine
    from neuron_pd.launcher.replace import become_engine

    if len(specs) > 1:
        raise UsageError(f"--exec becomes one of {len(specs)} engines: say which with --index")
    check_engine(specs[0])
    become_engine(specs[0].for_vllm(vllm_version()))
