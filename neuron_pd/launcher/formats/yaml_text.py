"""YAML for people: keys in the order they were made in, nothing folded into anchors."""

from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from neuron_pd.launcher.formats import container
from neuron_pd.launcher.formats.shell import comments
from neuron_pd.launcher.serve import ServeSpec


class _Plain(yaml.SafeDumper):
    """Writes a mapping out each time: anchors are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(documents: Iterable[Any]) -> str:
    return str(yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120))


def remarks(specs: Sequence[ServeSpec]) -> str:
    """What is worth knowing of these engines, each thing once, as comments."""
    lines = dict.fromkeys(remark for spec in specs for remark in container.remarks(spec))
    return "".join(f"{comment}\n" for comment in comments(tuple(lines)))
