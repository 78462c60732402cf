"""The profiles' schema as Markdown: the last part of docs/profiles.md."""

from typing import Any, Final

from neuron_pd.profiles.instance import Hardware, Instance, KVTransfer, Role
from neuron_pd.profiles.model import KV, Model, Target, Weights
from neuron_pd.profiles.schema import is_required, keys
from neuron_pd.profiles.settings import Settings

TABLES: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("An instance (`kind: instance`)", Instance, None),
    ("`kv_transfer`", KVTransfer, None),
    ("`hardware`", Hardware, None),
    ("`roles.prefill`, `roles.decode` of an instance: settings, and", Role, Settings),
    ("A model (`kind: model`)", Model, None),
    ("`weights`", Weights, None),
    ("`kv`", KV, None),
    ("`targets.<accelerator or instance type>`: settings, and", Target, Settings),
    ("Settings: in `defaults`, `roles` and `targets`", Settings, None),
)


def reference() -> str:
    """A heading and a table for each kind; keys that must be there are marked."""
    return "\n".join(_table(title, kind, without) for title, kind, without in TABLES)


def _table(title: str, kind: Any, without: Any) -> str:
    skipped = keys(without) if without else {}
    rows = [
        f"| `{name}`{' *' if is_required(item) else ''} | {item.metadata['doc']} |"
        for name, item in keys(kind).items()
        if name not in skipped
    ]
    return "\n".join([f"### {title}", "", "| key | |", "|---|---|", *rows, ""])
