"""Pools in a YAML file.

prefill:
  - http://10.0.0.1:8100
  - {url: "http://10.0.0.2:8100", kv_host: 10.1.0.2}
decode:
  - {url: "http://10.0.0.3:8200", drain: true}
  - dns+http://decode.serving.svc:8200
kubernetes:
  namespace: serving
  selector: app=qwen
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from neuron_pd.errors import UsageError
from neuron_pd.proxy.engines import Role, Target
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.pools.kubernetes import Kubernetes
from neuron_pd.proxy.pools.names import SCHEME, Names
from neuron_pd.proxy.pools.source import Member, Plan, Source

FILE_KEYS = {
    "prefill": "a list of engines that prefill: a URL, or a mapping with the keys below",
    "decode": "likewise, of engines that decode",
    "kubernetes": "look for more in the Kubernetes API: a mapping with the keys below",
}
ENGINE_KEYS = {
    "url": "http://HOST:PORT or https://…; dns+http://NAME:PORT is every address of a name, and has no other key",
    "kv_host": "the host that the other engines find its KV side channel at; the URL's if not given",
    "drain": "true: no new turns, and its conversations move",
}
KUBERNETES_KEYS = {
    "namespace": "where the pods are; the proxy's own if not given",
    "selector": "labels beside `neuron-pd/role`, as kubectl takes them",
}


def read_pools(path: Path) -> Plan:
    """What the file says. UsageError, naming file and entry, for anything that is not as documented."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the pools from {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return parse_pools(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def parse_pools(content: Any) -> Plan:
    """The same, of a parsed document."""
    top = _mapping(content, "the file", FILE_KEYS)
    members: list[Member] = []
    sources: list[Source] = []
    for role in Role:
        entries = top.get(role) or []
        if not isinstance(entries, list):
            raise UsageError(f"{role} must be a list of engines")
        for index, entry in enumerate(entries):
            found = _entry(role, entry, f"{role}[{index}]")
            (members if isinstance(found, Member) else sources).append(found)  # type: ignore[arg-type]
    if "kubernetes" in top:
        sources.append(Kubernetes(**_mapping(top["kubernetes"] or {}, "kubernetes", KUBERNETES_KEYS, text=True)))
    _refuse_twice(members)
    return Plan(tuple(members), tuple(dict.fromkeys(sources)))


def _entry(role: Role, entry: Any, where: str) -> Member | Names:
    fields = {"url": entry} if isinstance(entry, str) else _mapping(entry, where, ENGINE_KEYS)
    url, drain = fields.get("url"), fields.get("drain", False)
    if not isinstance(url, str):
        raise UsageError(f"{where} needs a url: http://HOST:PORT")
    if not isinstance(drain, bool):
        raise UsageError(f"{where}: drain must be true or false")
    if url.startswith(SCHEME):
        if len(fields) > 1:
            raise UsageError(f"{where}: a name that is resolved has a url only")
        return Names.parse(role, url)
    origin = Origin.parse(url)
    kv_host = fields.get("kv_host", origin.host)
    if not isinstance(kv_host, str) or not kv_host or "/" in kv_host:
        raise UsageError(f"{where}: kv_host must be a host")
    return Member(role, Target(origin, kv_host), drain)


def _mapping(value: Any, where: str, keys: Mapping[str, str], text: bool = False) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be a mapping with {', '.join(sorted(keys))}")
    if unknown := [str(key) for key in value if key not in keys]:
        raise UsageError(f"{where} has no {unknown[0]!r}: there are {', '.join(sorted(keys))}")
    if text and (wrong := [key for key, one in value.items() if not isinstance(one, str)]):
        raise UsageError(f"{where}: {wrong[0]} must be text")
    return value


def _refuse_twice(members: list[Member]) -> None:
    origins = [member.target.origin for member in members]
    for origin in origins:
        if origins.count(origin) > 1:
            raise UsageError(f"{origin.url} is given twice")
