"""Every value of a profile that ships says where it comes from."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from neuron_pd.profiles.store import shipped_dir

# What a profile says of itself, and lines for a person, come from nowhere else.
ITSELF = ("kind", "extends", "name", "description", "accelerator", "hub", "command", "notes", "sources")
FILES = sorted(shipped_dir().glob("*.yaml"))


def leaves(body: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in body.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_value_has_a_source(path: Any) -> None:
    body = yaml.safe_load(path.read_text())
    sources = body.get("sources", {})
    values = [leaf for leaf in leaves(body) if leaf.split(".")[0] not in ITSELF]
    covered = [any(leaf == source or leaf.startswith(f"{source}.") for source in sources) for leaf in values]
    assert [leaf for leaf, is_covered in zip(values, covered, strict=True) if not is_covered] == []
    unused = [source for source in sources if not any(f"{leaf}.".startswith(f"{source}.") for leaf in values)]
    assert unused == []
