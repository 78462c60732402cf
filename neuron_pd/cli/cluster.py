"""`neuron-pd cluster`: what runs both roles and the proxy, as files for a cluster."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuron_pd.cli.launch_topics import INSTANCE, MODEL, Fields, on_instance, transfer
from neuron_pd.cli.topics import TopicCommand, topic
from neuron_pd.errors import UsageError

if TYPE_CHECKING:
    from neuron_pd.launcher.cluster import Cluster

FORMATS = ("k8s", "helm", "compose")
NUMBER = click.IntRange(1)
# A Service's name (RFC 1035), with room for what is put behind it.
OBJECT_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?")


@topic("Model", *MODEL)
def model(model: str, served_name: str | None, dtype: str | None, max_model_len: int | None) -> Fields:
    return locals()


@topic("Machines", *INSTANCE)
def machines(instance: str | None, own: Sequence[Path], kv_cache_gib: int | None, nodes: int) -> Fields:
    return on_instance(instance, own, kv_cache_gib, nodes)


@topic(
    "Cluster",
    click.option("--name", default="neuron-pd", show_default=True, help="What the names of all objects begin with."),
    click.option("--prefill-engines", type=NUMBER, default=1, show_default=True, help="How many prefill engines."),
    click.option("--decode-engines", type=NUMBER, default=1, show_default=True, help="How many decode engines."),
    click.option("--proxies", type=NUMBER, default=1, show_default=True, help="How many proxies."),
    click.option("--cpu-cores", type=NUMBER, default=1, show_default=True, help="Cores of an engine on CPU."),
)
def sizes(name: str, prefill_engines: int, decode_engines: int, proxies: int, cpu_cores: int) -> Fields:
    if not OBJECT_NAME.fullmatch(name):
        raise UsageError(f"--name {name!r} is no name for Kubernetes: use up to 40 of a-z, 0-9 and -, a letter first")
    return locals()


@topic(
    "Output",
    click.option(
        "--format", "format_", default="k8s", show_default=True, metavar="|".join(FORMATS), help="How to print it."
    ),
    click.option("--image", help="Container image with neuron-pd (docs/images.md). Required."),
    click.option("--proxy-image", help="The proxy's, where it is another."),
)
def output(format_: str, image: str | None, proxy_image: str | None) -> Fields:
    if format_ not in FORMATS:
        raise UsageError(f"unknown format {format_!r}: use {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if not image:
        raise UsageError("say which container image has vLLM and neuron-pd: --image (docs/images.md builds one)")
    return {"image": image, "proxy_image": proxy_image or image}


@click.command("cluster", cls=TopicCommand)
@model
@transfer
@machines
@sizes
@output
@click.argument("vllm_args", nargs=-1, metavar="[-- VLLM_FLAGS...]")
def command(vllm_args: Sequence[str], **values: Any) -> None:
    """Print what runs prefill engines, decode engines and proxies: manifests, Helm values, or a compose file.

    The engines are those of `neuron-pd launch`. What follows -- is passed on to vLLM on both roles.
    """
    from neuron_pd.launcher.formats import CLUSTER_FORMATS

    images = output.of(values)
    cluster = _cluster(values, images, tuple(vllm_args))
    click.echo(CLUSTER_FORMATS[values["format_"]](cluster), nl=False)


def _cluster(values: dict[str, Any], images: Fields, vllm_args: tuple[str, ...]) -> "Cluster":
    from neuron_pd.launcher.cluster import Cluster, in_containers, in_pods, plan_pair
    from neuron_pd.launcher.formats.container import TOKEN_PATH
    from neuron_pd.launcher.request import Request

    said, size = model.of(values), sizes.of(values)
    card = said["model"]
    request = Request(
        role="prefill",
        card=card,
        python="python3",
        image=images["image"],
        token_file=Path(TOKEN_PATH),
        extra_args=vllm_args,
        **{**said, "model": _in_container(card), "served_name": said["served_name"] or _short(card)},
        **transfer.of(values),
        **machines.of(values),
    )
    cores = size.pop("cpu_cores")
    prefill, decode = plan_pair((in_containers if values["format_"] == "compose" else in_pods)(request), cores)
    return Cluster(prefill=prefill, decode=decode, proxy_image=images["proxy_image"], **size)


def _in_container(model: str) -> str:
    """Where the container has the model: our images hold the embedded ones; a directory is the machine's own."""
    from neuron_pd.launcher.formats.container import MODELS
    from neuron_pd.models import NAMES

    if model in NAMES:
        return f"{MODELS}/{model}"
    if not model.startswith("/") and (model.count("/") != 1 or model[0] in ".~-"):
        raise UsageError(
            f"{model} is no model for a cluster: give a hub's owner/name, or the directory that every machine has"
        )
    return model


def _short(model: str) -> str | None:
    return model if "/" not in model else None
