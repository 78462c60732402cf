"""Instance profiles: what a kind of machine needs in an engine's environment and command line.

A profile is a YAML file in launch/profiles (docs/launch.md has the schema); people add their own by path. Texts in
`command`, `environment` and `flags` may name values of the engine in braces (`PLACEHOLDERS`). Unknown keys are refused.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, Final, TypeVar

import yaml

from neuron_pd.errors import UsageError

ROLES: Final = ("prefill", "decode")
PLACEHOLDERS: Final = frozenset(
    ("python", "model", "side_channel_host", "side_channel_port", "kv_cache_gib", "cores", "core_count")
)

Flag = str | int | float | bool
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KVTransfer:
    """`--kv-transfer-config`: where vLLM keeps transferred KV, and NIXL's backends."""

    buffer_device: str
    backends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Defaults:
    """Used where a person names no other. `max_model_len` in tokens, `kv_cache_gib` in GiB."""

    dtype: str
    max_model_len: int
    kv_cache_gib: int


@dataclass(frozen=True, slots=True)
class RoleProfile:
    """Ports of a role, and what it needs beside or in place of the profile's own environment and flags."""

    port: int
    side_channel_port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Flag] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of instance. A flag is `--name value`; true stands for `--name`, false for `--no-name`."""

    name: str
    description: str
    accelerator: str
    command: tuple[str, ...]
    kv_transfer: KVTransfer
    defaults: Defaults
    roles: Mapping[str, RoleProfile]
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Flag] = field(default_factory=dict)

    def environment_of(self, role: str) -> dict[str, str]:
        return {**self.environment, **self.roles[role].environment}

    def flags_of(self, role: str) -> dict[str, Flag]:
        return {**self.flags, **self.roles[role].flags}


def profiles_dir() -> Path:
    """The profiles that ship with neuron-pd: inside the wheel, or at the top of a source tree."""
    packaged = Path(__file__).with_name("profiles")
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "launch" / "profiles"


def known_instances() -> list[str]:
    return sorted(path.stem for path in profiles_dir().glob("*.yaml"))


@cache
def load_profile(instance: str) -> Profile:
    """The profile of a known instance, or the one in the file that `instance` is the path of (*.yaml). UsageError."""
    own = instance.endswith((".yaml", ".yml"))
    path = Path(instance).expanduser() if own else profiles_dir() / f"{instance}.yaml"
    if not own and instance not in known_instances():
        known = ", ".join(known_instances())
        raise UsageError(f"unknown instance {instance!r}: use {known}, or the path of a profile of your own (*.yaml)")
    try:
        body = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the profile {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    return parse_profile(body, str(path))


def parse_profile(body: Any, where: str) -> Profile:
    """Check and read a profile's YAML. UsageError naming the file, the key and what is wrong with it."""
    values = _keys(Profile, body, where)
    roles = values["roles"]
    if not isinstance(roles, dict) or sorted(roles) != sorted(ROLES):
        raise UsageError(f"{where}: roles must be exactly {' and '.join(ROLES)}")
    profile = _build(
        Profile,
        values
        | {
            "command": _texts(values["command"], f"{where}: command"),
            "kv_transfer": _kv_transfer(values["kv_transfer"], f"{where}: kv_transfer"),
            "defaults": _build(Defaults, _keys(Defaults, values["defaults"], f"{where}: defaults"), where),
            "roles": {name: _role(role, f"{where}: roles.{name}") for name, role in roles.items()},
            "environment": _environment(values.get("environment", {}), f"{where}: environment"),
            "flags": _flags(values.get("flags", {}), f"{where}: flags"),
        },
        where,
    )
    _check_placeholders(profile, where)
    return profile


def _keys(kind: type[Any], body: Any, where: str) -> dict[str, Any]:
    """`body` as a mapping with every required key of `kind` and no unknown one."""
    if not isinstance(body, dict):
        raise UsageError(f"{where} must be a mapping")
    known = {field.name: field for field in fields(kind)}
    if unknown := sorted(str(key) for key in body if key not in known):
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(known)}")
    required = [name for name, field in known.items() if field.default_factory is MISSING]
    if missing := [name for name in required if name not in body]:
        raise UsageError(f"{where}: {missing[0]} is missing")
    return body


_TYPES: Final[dict[str, type]] = {
    **dict.fromkeys(("port", "side_channel_port", "max_model_len", "kv_cache_gib"), int),
    **dict.fromkeys(("name", "description", "accelerator", "dtype", "buffer_device"), str),
}


def _build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    for name, value in values.items():
        wanted = _TYPES.get(name)
        if wanted is int and (type(value) is not int or value < 1):
            raise UsageError(f"{where}: {name} must be a whole number above 0, not {value!r}")
        if wanted is str and not (isinstance(value, str) and value):
            raise UsageError(f"{where}: {name} must be text, not {value!r}")
    return kind(**values)


def _role(body: Any, where: str) -> RoleProfile:
    values = _keys(RoleProfile, body, where)
    parsed = {
        "environment": _environment(values.get("environment", {}), f"{where}.environment"),
        "flags": _flags(values.get("flags", {}), f"{where}.flags"),
    }
    return _build(RoleProfile, values | parsed, where)


def _kv_transfer(body: Any, where: str) -> KVTransfer:
    values = _keys(KVTransfer, body, where)
    return _build(KVTransfer, values | {"backends": _texts(values["backends"], f"{where}.backends")}, where)


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise UsageError(f"{where} must be a list of texts")
    return tuple(value)


def _environment(body: Any, where: str) -> dict[str, str]:
    if not isinstance(body, dict):
        raise UsageError(f"{where} must be a mapping of names to texts")
    for name, value in body.items():
        if not isinstance(name, str) or not name.isidentifier() or not isinstance(value, str):
            raise UsageError(f"{where}: {name} must be a text: put {value!r} in quotes")
    return dict(body)


def _flags(body: Any, where: str) -> dict[str, Flag]:
    if not isinstance(body, dict):
        raise UsageError(f"{where} must be a mapping of vLLM flags, without their dashes, to values")
    for name, value in body.items():
        if not isinstance(name, str) or name.startswith("-") or not isinstance(value, str | int | float | bool):
            raise UsageError(f"{where}: {name} must be a flag without dashes with one text, number, true or false")
    return dict(body)


def _check_placeholders(profile: Profile, where: str) -> None:
    texts: list[Any] = [*profile.command]
    for role in ROLES:
        texts += [*profile.environment_of(role).values(), *profile.flags_of(role).values()]
    for text in texts:
        try:
            names = {name for _, name, _, _ in Formatter().parse(str(text)) if name is not None}
        except ValueError as error:
            raise UsageError(f"{where}: {text!r}: {error}; write {{{{ and }}}} for braces") from error
        if unknown := sorted(names - PLACEHOLDERS):
            raise UsageError(f"{where}: unknown value {{{unknown[0]}}}; known are {', '.join(sorted(PLACEHOLDERS))}")
