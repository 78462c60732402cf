"""`neuron-pd launch`'s options by topic. Each topic makes the fields of a Request that it is about."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from neuron_pd.cli.topics import topic
from neuron_pd.errors import UsageError

BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
FORMATS = ("shell", "json", "systemd", "docker", "k8s")
PORT = click.IntRange(1, 65535)
Fields = dict[str, Any]


def variables(name: str, article: str) -> list[str]:
    """neuron-pd's own environment variable of an option, then the one that multi-turn P/D benchmarks use."""
    return [f"NEURON_PD_LAUNCH_{name}", article]


MODEL = (
    click.option(
        "--model",
        envvar=variables("MODEL", "MODEL"),
        default="tiny",
        show_default=True,
        metavar="DIR|NAME|tiny|smollm2",
        help="The model to serve: a directory, a hub's owner/name, or an embedded one.",
    ),
    click.option(
        "--served-name",
        "--served-model-name",
        "served_name",
        envvar=variables("SERVED_NAME", "SERVED_NAME"),
        help="Its name for clients. [the model's]",
    ),
    click.option("--dtype", help="Precision. [the model's or instance's]"),
    click.option(
        "--max-model-len", type=click.IntRange(1), help="Longest sequence, tokens. [the model's or instance's]"
    ),
)
INSTANCE = (
    click.option(
        "--instance", help="Instance type, or a profile's file (*.yaml). [detected; cpu without an accelerator]"
    ),
    click.option(
        "--profile",
        "own",
        type=click.Path(exists=True, path_type=Path),
        multiple=True,
        metavar="FILE|DIR",
        help="Profiles of your own, of instances or models; they win over those that ship. Repeatable.",
    ),
    click.option("--kv-cache-gib", type=click.IntRange(1), help="Memory for KV on CPU, GiB. [the instance's]"),
    click.option(
        "--nodes", type=click.IntRange(1), default=1, show_default=True, help="Machines that an engine spans."
    ),
)


@topic(
    "Engine",
    click.option("--role", envvar=variables("ROLE", "ROLE"), metavar="prefill|decode", help="What the engine does."),
    *MODEL,
    click.option(
        "--prefix-caching/--no-prefix-caching",
        default=True,
        show_default=True,
        help="Off on prefill to measure as if its cache had been evicted.",
    ),
)
def engine(
    role: str | None,
    model: str,
    served_name: str | None,
    dtype: str | None,
    max_model_len: int | None,
    prefix_caching: bool,
) -> Fields:
    if not role:
        raise UsageError("say --role prefill or decode")
    return locals()


@topic(
    "KV transfer",
    click.option(
        "--bidir",
        envvar=variables("BIDIR", "BIDIR"),
        metavar="true|false",
        is_flag=False,
        default="true",
        flag_value="true",
        show_default=True,
        help="KV also flows from decode to prefill. The same on both.",
    ),
    click.option("--no-bidir", is_flag=True, help="The same as --bidir false."),
    click.option(
        "--connector",
        default="neuron-pd",
        show_default=True,
        metavar="neuron-pd|upstream",
        help="neuron-pd's, or vLLM's own without anything of ours.",
    ),
    click.option(
        "--retention",
        default="lease",
        show_default=True,
        metavar="lease|pin",
        help="Between turns decode pins nothing, or pins blocks until their TTL ends.",
    ),
)
def transfer(bidir: str, no_bidir: bool, connector: str, retention: str) -> Fields:
    if bidir.lower() not in BOOLEANS:
        raise UsageError(f"--bidir is {bidir!r}: use true or false")
    return {"bidir": BOOLEANS[bidir.lower()] and not no_bidir, "connector": connector, "retention": retention}


@topic(
    "Network",
    click.option("--prefill-host", envvar=variables("PREFILL_HOST", "P_IP"), help="The prefill node's address."),
    click.option("--decode-host", envvar=variables("DECODE_HOST", "D_IP"), help="The decode node's address."),
    click.option("--host", help="Address to listen on. [this role's, else 127.0.0.1]"),
    click.option("--port", type=PORT, help="Port to listen on. [prefill 8100, decode 8200]"),
    click.option("--side-channel-host", help="Address of NIXL's side channel. [this role's, else 127.0.0.1]"),
    click.option("--side-channel-port", type=PORT, help="First of one for each data-parallel rank. [the instance's]"),
)
def network(
    prefill_host: str | None,
    decode_host: str | None,
    host: str | None,
    port: int | None,
    side_channel_host: str | None,
    side_channel_port: int | None,
) -> Fields:
    return locals()


@topic(
    "Machine",
    *INSTANCE,
    click.option("--node-rank", type=click.IntRange(0), default=0, show_default=True, help="Which of --nodes this is."),
    click.option("--cores", help="Logical NeuronCores, GPUs or CPU cores, like 0-3,6. [chosen]"),
    click.option("--engines", type=click.IntRange(1), default=1, show_default=True, help="Engines of this role here."),
)
def machine(
    instance: str | None,
    own: Sequence[Path],
    kv_cache_gib: int | None,
    nodes: int,
    node_rank: int,
    cores: str | None,
    engines: int,
) -> Fields:
    on = on_instance(instance, own, kv_cache_gib, nodes)
    return {**on, "node_rank": node_rank, "cores": cores, "engines": engines}


def on_instance(instance: str | None, own: Sequence[Path], kv_cache_gib: int | None, nodes: int) -> Fields:
    from neuron_pd.profiles import Profiles

    profiles = Profiles(tuple(own))
    found = instance or detected(profiles)
    return {"profiles": profiles, "instance": found, "kv_cache_gib": kv_cache_gib, "nodes": nodes}


def detected(profiles: Any) -> str:
    from neuron_pd.hosts.machine import observe
    from neuron_pd.profiles.detect import instance_of

    return instance_of(observe(), profiles)


@topic(
    "Output",
    click.option("--index", type=click.IntRange(0), help="Which of --engines, from 0. [all; --exec needs one]"),
    click.option(
        "--format", "format_", default="shell", show_default=True, metavar="|".join(FORMATS), help="How to print it."
    ),
    click.option("--image", help="Container image, for docker and k8s. [the instance's]"),
    click.option("--exec", "become", is_flag=True, help="Become the server instead of printing the command."),
)
def output(index: int | None, format_: str, image: str | None, become: bool) -> Fields:
    if format_ not in FORMATS:
        raise UsageError(f"unknown format {format_!r}: use {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return {"index": index or 0, "image": image}
