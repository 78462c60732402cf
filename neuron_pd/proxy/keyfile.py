"""The file of API keys: who may use the proxy. Keys themselves are not in it.

    salt: 6f1c…                # hex; made with the file
    keys:
      - tenant: acme           # scopes conversations; several keys may have the same
        digest: 9b1d…          # HMAC-SHA256 of the key under the salt, hex
        models: [qwen, qwen-*] # names or patterns; all models where it is left out
        label: ci              # for people

Keys that are made here have 256 random bits, so nobody finds one from its digest by trying. YAML, and so JSON too.
"""

import hmac
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from neuron_pd.errors import UsageError

ENTRY_KEYS = {
    "tenant": "whose it is; conversations are the tenant's, and several keys may have the same",
    "digest": "HMAC-SHA256 of the key under the file's salt, hex",
    "models": "names or patterns of the models that it may ask for; all if not given",
    "label": "for people",
}
PREFIX = "npd-"
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Entry:
    tenant: str
    digest: bytes
    models: tuple[str, ...] | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class KeyFile:
    salt: bytes
    entries: tuple[Entry, ...]

    def digest(self, key: bytes) -> bytes:
        return digest(self.salt, key)


def digest(salt: bytes, key: bytes) -> bytes:
    return hmac.digest(salt, key, "sha256")


def read_keys(path: Path) -> KeyFile:
    """UsageError, which names the place, for what is not a file of keys."""
    try:
        read = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the API keys from {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(read, dict) or not isinstance(read.get("keys"), list):
        raise UsageError(f"{path} has no list of keys: make one with `neuron-pd key new --file {path} --tenant NAME`")
    salt = _hex(read.get("salt"), f"{path}: salt")
    entries = tuple(_entry(item, f"{path}: key {place}") for place, item in enumerate(read["keys"], start=1))
    if len({entry.digest for entry in entries}) < len(entries):
        raise UsageError(f"{path} has the same key twice")
    return KeyFile(salt, entries)


def add_key(path: Path, tenant: str, models: Sequence[str] = (), label: str = "") -> str:
    """Make a key, add its digest to the file (made where there is none, for its owner only), and return it.

    What stands in a YAML file stays as it is, comments too. UsageError where it is not a file of keys.
    """
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    text, salt = f"salt: {secrets.token_hex(KEY_BYTES)}\nkeys: []", b""
    if path.exists():
        salt, text = read_keys(path).salt, path.read_text()
    read = yaml.safe_load(text)
    entry: dict[str, Any] = {
        "tenant": tenant,
        "digest": digest(salt or bytes.fromhex(read["salt"]), key.encode()).hex(),
    }
    if models:
        entry["models"] = list(models)
    if label:
        entry["label"] = label
    _replace(path, _with(text, read, entry))
    return key


def _with(text: str, read: dict[str, Any], entry: dict[str, Any]) -> str:
    """The file with one key more: written behind the others, else, where that is not how it is laid out, anew."""
    items = re.findall(r"^( *)- ", text, re.MULTILINE)
    indent = items[-1] if items else "  "
    lines = yaml.safe_dump([entry], sort_keys=False, allow_unicode=True).splitlines()
    longer = "\n".join([text.rstrip("\n").removesuffix(" []"), *(indent + line for line in lines)]) + "\n"
    wanted = {**read, "keys": [*read["keys"], entry]}
    try:
        fits = yaml.safe_load(longer) == wanted
    except yaml.YAMLError:
        fits = False
    return longer if fits else yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True)


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole: a reader sees the old one or the new one."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.touch(mode=mode)
        beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _entry(item: Any, place: str) -> Entry:
    if not isinstance(item, dict):
        raise UsageError(f"{place} is not tenant, digest and models")
    if unknown := sorted(set(item) - set(ENTRY_KEYS), key=str):
        raise UsageError(f"{place} has {unknown[0]!r}: there are tenant, digest, models and label")
    tenant, models = item.get("tenant"), item.get("models")
    if not isinstance(tenant, str) or not tenant:
        raise UsageError(f"{place} has no tenant")
    if models is not None and not (isinstance(models, list) and all(isinstance(model, str) for model in models)):
        raise UsageError(f"{place}: models is not a list of names")
    return Entry(
        tenant, _hex(item.get("digest"), place), None if models is None else tuple(models), str(item.get("label", ""))
    )


def _hex(value: Any, place: str) -> bytes:
    """At least 16 bytes of hex: an unquoted all-digit value is a number to YAML."""
    try:
        decoded = bytes.fromhex(str(value))
    except ValueError:
        decoded = b""
    if len(decoded) < 16:
        raise UsageError(f"{place} is not hex of 16 bytes or more")
    return decoded
