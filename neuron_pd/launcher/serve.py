"""What one engine is, and the environment and command line that make it so."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from neuron_pd.core.control import TOKEN_FILE_ENV
from neuron_pd.errors import UsageError
from neuron_pd.launcher.cores import available_cores, core_count, format_cores, halves
from neuron_pd.launcher.profile import ROLES, Flag, Profile, load_profile
from neuron_pd.launcher.weights import length_limit

CONNECTOR: Final = "NixlConnector"  # vLLM's own checks go by the class name; the module path decides which class it is
CONNECTOR_MODULE: Final = "neuron_pd.connector.connector"
MIDDLEWARE: Final = "neuron_pd.connector.control.ControlPath"
RETENTIONS: Final = ("lease",)
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
KV_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


def new_engine_id(role: str) -> str:
    """An id that no engine had before: a restarted engine under its old id would be a stale peer to the other role."""
    return f"{role}-{uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSpec:
    """One engine to serve. Lengths in tokens, times in seconds, `kv_cache_gib` in GiB, `ledger_bytes` in bytes.

    `cores` is a list of CPU cores as in "0-3,6". `model` is a directory, or a name that vLLM itself can resolve.
    `token_file` holds the control token; the token itself is never part of an environment or a command line.
    `extra_args` end the command line, so they win over everything here.
    """

    role: str
    model: str
    port: int
    side_channel_port: int
    profile: Profile
    served_name: str = ""
    host: str = "127.0.0.1"
    side_channel_host: str = "127.0.0.1"
    bidir: bool = True
    retention: str = "lease"
    cores: str = ""
    kv_cache_gib: int = 0
    dtype: str = ""
    max_model_len: int = 0
    prefix_caching: bool = True
    recompute_threshold: int = 64
    read_lease_seconds: int = 30
    kv_lease_duration: int = 30
    decoder_kv_blocks_ttl: int = 480
    ledger_bytes: int = 64 * 2**20
    engine_id: str = ""
    token_file: Path | None = None
    extra_args: Sequence[str] = ()
    python: str = field(default_factory=lambda: sys.executable)

    def environment(self) -> dict[str, str]:
        """What to add to the environment of the server."""
        variables = {name: self._fill(text) for name, text in self.profile.environment_of(self.role).items()}
        if Path(self.model).is_dir():
            variables = {"HF_HUB_OFFLINE": "1", **variables}
        if self.token_file is not None:
            variables[TOKEN_FILE_ENV] = str(self.token_file)
        return variables

    def argv(self) -> list[str]:
        """The serve command. Each flag and its value follow each other."""
        command = [self._fill(text) for text in self.profile.command]
        for name, value in self._flags().items():
            command += _flag(name, value)
        command += ["--kv-transfer-config", json.dumps(self.kv_transfer_config(), separators=(",", ":"))]
        return [*command, *self.extra_args]

    def kv_transfer_config(self) -> dict[str, Any]:
        """`--kv-transfer-config`: our connector under upstream's name, upstream's keys, and ours beside them."""
        return {
            "kv_connector": CONNECTOR,
            "kv_connector_module_path": CONNECTOR_MODULE,
            "kv_role": KV_ROLES[self.role],
            "kv_buffer_device": self.profile.kv_transfer.buffer_device,
            # vLLM's default, "fail", turns a read that came to nothing into an HTTP 500.
            "kv_load_failure_policy": "recompute",
            "engine_id": self.engine_id,
            "kv_connector_extra_config": {
                "backends": list(self.profile.kv_transfer.backends),
                "bidirectional_kv_xfer": self.bidir,
                "kv_recompute_threshold": self.recompute_threshold,
                "retention": self.retention,
                "read_lease_seconds": self.read_lease_seconds,
                "kv_lease_duration": self.kv_lease_duration,
                "decoder_kv_blocks_ttl": self.decoder_kv_blocks_ttl,
                "ledger_bytes": self.ledger_bytes,
            },
        }

    @property
    def url(self) -> str:
        return base_url(self.host, self.port)

    def _flags(self) -> dict[str, Flag]:
        flags: dict[str, Flag] = {
            "served-model-name": self.served_name,
            "dtype": self.dtype,
            "max-model-len": self.max_model_len,
            "port": self.port,
            "host": self.host,
            "middleware": MIDDLEWARE,
        }
        for name, value in self.profile.flags_of(self.role).items():
            flags[name] = self._fill(value) if isinstance(value, str) else value
        if not self.prefix_caching:
            flags["enable-prefix-caching"] = False
        return flags

    def _fill(self, text: str) -> str:
        return text.format(
            python=self.python,
            model=self.model,
            side_channel_host=self.side_channel_host,
            side_channel_port=self.side_channel_port,
            kv_cache_gib=self.kv_cache_gib,
            cores=self.cores,
            core_count=core_count(self.cores),
        )


def serve_spec(role: str, model: str, *, instance: str = "cpu", **given: Any) -> ServeSpec:
    """A ServeSpec with what its profile says where `given` says nothing (a value of None is nothing).

    UsageError for an unknown role, instance or retention, and for a length beyond what the model can do.
    """
    if role not in ROLES:
        raise UsageError(f"unknown role {role!r}: use {' or '.join(ROLES)}")
    profile = load_profile(instance)
    chosen = {name: value for name, value in given.items() if value is not None}
    if (retention := chosen.get("retention", "lease")) not in RETENTIONS:
        raise UsageError(f"unknown retention {retention!r}: use {' or '.join(RETENTIONS)}")
    defaults: dict[str, Any] = {
        "port": profile.roles[role].port,
        "side_channel_port": profile.roles[role].side_channel_port,
        "served_name": Path(model).name,
        "dtype": profile.defaults.dtype,
        "kv_cache_gib": profile.defaults.kv_cache_gib,
        "max_model_len": min(profile.defaults.max_model_len, length_limit(model) or sys.maxsize),
        "engine_id": new_engine_id(role),
        "cores": cores_for(role, str(chosen.get("side_channel_host", "127.0.0.1"))),
    }
    core_count(str(chosen.get("cores", "")))
    spec = ServeSpec(role=role, model=model, profile=profile, **(defaults | chosen))
    limit = length_limit(model)
    if limit and spec.max_model_len > limit:
        raise UsageError(f"{Path(model).name} can do {limit} tokens: lower --max-model-len {spec.max_model_len}")
    return spec


def cores_for(role: str, side_channel_host: str) -> str:
    """A half of this machine's cores where the other role must be on it too, else all of them."""
    cores = available_cores()
    if side_channel_host in LOOPBACK:
        cores = halves(cores)[ROLES.index(role)]
    return format_cores(cores)


def base_url(host: str, port: int) -> str:
    """The URL to reach a server that listens on `host`: on this machine where it listens on every address."""
    reachable = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable and "[" not in reachable else f"http://{reachable}:{port}"


def _flag(name: str, value: Flag) -> list[str]:
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    return [f"--{name}", str(value)]
