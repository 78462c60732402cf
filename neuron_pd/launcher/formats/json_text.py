"""JSON for machines."""

import json
from collections.abc import Sequence
from typing import Any

from neuron_pd.launcher.serve import ServeSpec


def as_json(specs: Sequence[ServeSpec]) -> str:
    """{"env": {name: text}, "argv": [text, …], "notes": [text, …]}; a list of them for several engines.

    An engine's id in it is for one start.
    """
    bodies = [_body(spec) for spec in specs]
    return json.dumps(bodies[0] if len(bodies) == 1 else bodies, indent=2, ensure_ascii=False)


def _body(spec: ServeSpec) -> dict[str, Any]:
    return {"env": spec.environment(), "argv": spec.argv(), "notes": list(spec.notes)}
