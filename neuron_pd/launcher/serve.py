"""What one engine is: the environment and the command line that make it so, with what is worth knowing beside them."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from neuron_pd.core.control import TOKEN_FILE_ENV
from neuron_pd.errors import UsageError
from neuron_pd.hosts.addresses import ANY, HERE
from neuron_pd.launcher.buckets import with_buckets
from neuron_pd.launcher.cores import core_count, parse_cores
from neuron_pd.launcher.flags import ADDITIONAL, KV_TRANSFER, Value, as_words, number, override, parse_flags, told
from neuron_pd.launcher.layout import Layout, check_apart, lay_out
from neuron_pd.launcher.memory import Fit, check_fits, fit
from neuron_pd.launcher.notes import notes_on
from neuron_pd.launcher.request import Request, check_request
from neuron_pd.launcher.transfer_config import check_reach, known_to, transfer_config
from neuron_pd.launcher.weights import length_limit
from neuron_pd.profiles import Instance, Model, Settings

MIDDLEWARE: Final = "neuron_pd.connector.control.ControlPath"
# vLLM's Rust front end runs no ASGI middleware: the control path would be missing.
PYTHON_FRONT_END: Final = {"VLLM_USE_RUST_FRONTEND": "0"}


def new_engine_id(role: str) -> str:
    """An id that no engine had before: a restarted engine under its old id would be a stale peer to the other role."""
    return f"{role}-{uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSpec:
    """One engine to serve, with every choice made. All output is made of this, whatever its format.

    `command` goes up to the first flag, `flags` are in the order of the command line, `extra` are a person's other
    words for vLLM. `host` is where the API listens, on every address where it is not said. `kv_cache_gib` is 0 where
    vLLM sizes the cache itself. `fit` is the arithmetic of the accelerator's memory, where it is known. The control
    token is never part of an environment or a command line; `token_file` holds it.
    """

    request: Request
    instance: Instance
    model: str
    command: tuple[str, ...]
    variables: Mapping[str, str]
    flags: Mapping[str, Value]
    extra: tuple[str, ...]
    host: str
    port: int
    layout: Layout
    kv_cache_gib: int
    fit: Fit | None
    notes: tuple[str, ...]

    @property
    def role(self) -> str:
        return self.request.role

    @property
    def name(self) -> str:
        """The role, with a number where there are several of it on this machine."""
        return f"{self.role}-{self.request.index}" if self.request.engines > 1 else self.role

    @property
    def side_channel_host(self) -> str:
        return self.request.side_channel

    @property
    def side_channel_port(self) -> int:
        return self.layout.side_channel_port

    @property
    def cores(self) -> str:
        return self.layout.cores

    @property
    def token_file(self) -> Path | None:
        return self.request.token_file if self.request.ours else None

    @property
    def served_name(self) -> str:
        return str(self.flags.get("served-model-name", self.model))

    @property
    def dtype(self) -> str:
        return str(self.flags["dtype"])

    @property
    def max_model_len(self) -> int:
        """Tokens; 0 where vLLM is to find out (`auto`)."""
        return number(self.flags, "max-model-len") or 0

    @property
    def bidir(self) -> bool:
        return bool(self.kv_transfer_config()["kv_connector_extra_config"]["bidirectional_kv_xfer"])

    @property
    def prefix_caching(self) -> bool:
        return self.flags.get("enable-prefix-caching") is not False

    @property
    def engine_id(self) -> str:
        return str(self.kv_transfer_config()["engine_id"])

    @property
    def draws_id(self) -> bool:
        """The engine's id is for one start. Several nodes cannot agree on one, so theirs stays."""
        return self.request.ours and self.request.nodes == 1

    @property
    def url(self) -> str:
        return base_url(self.host, self.port)

    def environment(self) -> dict[str, str]:
        """What to add to the environment of the server."""
        return dict(self.variables)

    def argv(self) -> list[str]:
        """The serve command. Each flag and its value follow each other."""
        return [*self.command, *as_words(self.flags), *self.extra]

    def kv_transfer_config(self) -> dict[str, Any]:
        config = self.flags[KV_TRANSFER]
        assert isinstance(config, Mapping)
        return dict(config)

    def for_vllm(self, version: str | None) -> "ServeSpec":
        """The same engine for this release of vLLM, where it is known."""
        return replace(self, flags={**self.flags, KV_TRANSFER: known_to(self.kv_transfer_config(), version)})

    def with_engine_id(self, engine_id: str | None) -> "ServeSpec":
        """The same engine under another id; with None vLLM draws one at each start."""
        config = self.kv_transfer_config() | {"engine_id": engine_id}
        if engine_id is None:
            del config["engine_id"]
        return replace(self, flags={**self.flags, KV_TRANSFER: config})


def serve_spec(role: str, model: str, **given: Any) -> ServeSpec:
    """As `plan`, with the fields of a Request by name; a value of None is not said."""
    return plan(Request(role=role, model=model, **{name: value for name, value in given.items() if value is not None}))


def plan(request: Request) -> ServeSpec:
    """Every choice that the request leaves open, from the profiles. UsageError, with the reason, where none works."""
    check_request(request)
    instance = request.profiles.instance(request.instance)
    check_reach(request, instance)
    card = request.profiles.model(request.card or request.model)
    settings = _settings(request, instance, card, request.role)
    layout = lay_out(request, instance, settings)
    given = parse_flags(request.extra_args)
    flags, extra = override(_flags(request, instance, settings, layout), given)
    if instance.accelerator == "neuron":
        flags = with_buckets(flags)
    flags[KV_TRANSFER] = flags.pop(KV_TRANSFER)
    _check_length(request, card, flags)
    found = fit(request.model, card, instance, layout, told(flags, given))
    if found is not None:
        check_fits(found, card.name if card else Path(request.model).name, layout)
    port, host = number(flags, "port") or layout.port, str(flags.get("host") or ANY)
    return ServeSpec(
        request=request,
        instance=instance,
        model=request.model,
        command=tuple(_fill(text, request, settings, layout) for text in instance.command),
        variables=_variables(request, instance, settings, layout),
        flags=flags,
        extra=tuple(extra),
        host=host,
        port=port,
        layout=replace(layout, port=port),
        kv_cache_gib=settings.kv_cache_gib or 0,
        fit=found,
        notes=notes_on(request, instance, card, layout, flags, found),
    )


def check_against_peer(spec: ServeSpec) -> None:
    """UsageError when the engine of the other role, as `launch` would start it here, collides with this one."""
    request = spec.request
    card = request.profiles.model(request.card or request.model)
    check_apart(request, spec.layout, spec.instance, _settings(request, spec.instance, card, request.peer))


def _settings(request: Request, instance: Instance, card: Model | None, role: str) -> Settings:
    """A person's words over the model's over the instance's."""
    said = Settings(dtype=request.dtype, max_model_len=request.max_model_len, kv_cache_gib=request.kv_cache_gib)
    settings = instance.settings(role)
    if card is not None:
        settings = card.settings(instance, role).over(settings)
    settings = said.over(settings)
    limit = length_limit(request.model) or (card.max_model_len if card else sys.maxsize)
    if request.max_model_len is None and (settings.max_model_len or 0) > limit:
        settings = replace(settings, max_model_len=limit)
    return settings


def _check_length(request: Request, card: Model | None, flags: Mapping[str, Value]) -> None:
    limit, length = length_limit(request.model) or (card.max_model_len if card else 0), number(flags, "max-model-len")
    if limit and length is not None and length > limit:
        raise UsageError(f"{Path(request.model).name} can do {limit} tokens: lower --max-model-len {length}")


def _flags(request: Request, instance: Instance, settings: Settings, layout: Layout) -> dict[str, Value]:
    """Ours, in the order of the command line."""
    sizes: dict[str, Value | None] = {
        "served-model-name": request.served_name or Path(request.model).name,
        "dtype": settings.dtype,
        "tensor-parallel-size": settings.tensor_parallel_size,
        "data-parallel-size": settings.data_parallel_size,
        "max-model-len": settings.max_model_len,
        "max-num-seqs": settings.max_num_seqs,
        "max-num-batched-tokens": settings.max_num_batched_tokens,
        "block-size": settings.block_size,
        "enable-prefix-caching": None if request.prefix_caching else False,
        "port": layout.port,
        "host": request.host or ((request.own_host or HERE) if request.ours else None),
        "middleware": MIDDLEWARE if request.ours else None,
        **(_node(request) if request.nodes > 1 else {}),
    }
    flags = {name: value for name, value in sizes.items() if value is not None}
    for name, value in settings.flags.items():
        flags[name] = _fill(value, request, settings, layout) if isinstance(value, str) else value
    if settings.neuron_config:
        flags[ADDITIONAL] = {"neuron_config": dict(settings.neuron_config)}
    flags[KV_TRANSFER] = transfer_config(request, instance, settings, _engine_id(request))
    return flags


def _node(request: Request) -> dict[str, Value | None]:
    """This node's part of an engine that spans several. Only the first one has an API server."""
    return {
        "nnodes": request.nodes,
        "node-rank": request.node_rank,
        "master-addr": request.head,
        "headless": True if request.node_rank else None,
    }


def _engine_id(request: Request) -> str:
    """Fresh with our connector, unless several nodes must have the same. Upstream's users know it by a fixed name."""
    if request.nodes > 1:
        return f"{request.role}-{request.head}"
    return new_engine_id(request.role) if request.ours else f"{request.role}-engine-{request.index + 1:03d}"


def _variables(request: Request, instance: Instance, settings: Settings, layout: Layout) -> dict[str, str]:
    variables = {name: _fill(text, request, settings, layout) for name, text in settings.environment.items()}
    if instance.accelerator == "cuda" and instance.hardware and core_count(layout.cores) < instance.hardware.cores:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, parse_cores(layout.cores)))
    if Path(request.model).is_dir():
        variables = {"HF_HUB_OFFLINE": "1", **variables}
    if request.ours:
        variables |= PYTHON_FRONT_END
        if request.token_file is not None:
            variables[TOKEN_FILE_ENV] = str(request.token_file)
    return variables


def _fill(text: str, request: Request, settings: Settings, layout: Layout) -> str:
    return text.format(
        python=request.python or sys.executable,
        model=request.model,
        side_channel_host=request.side_channel,
        side_channel_port=layout.side_channel_port,
        kv_cache_gib=settings.kv_cache_gib or 0,
        cores=layout.cores,
        core_count=core_count(layout.cores),
    )


def base_url(host: str, port: int) -> str:
    """The URL to reach a server that listens on `host`: on this machine where it listens on every address."""
    reachable = {"": HERE, ANY: HERE, "::": "[::1]"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable and "[" not in reachable else f"http://{reachable}:{port}"
