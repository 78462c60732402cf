"""Embedded models, made on this machine: nothing is downloaded from a model hub.

`tiny` is a random-weight Qwen3 with its own tokenizer (`tiny.py`), `smollm2` is SmolLM2-135M-Instruct out of the
package that ships it (`smollm2.py`). Each is made once and kept in the user's cache (`store.py`).
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

from neuron_pd.errors import UsageError
from neuron_pd.models.store import Recipe, made

RECIPES: Final = {"tiny": "neuron_pd.models.tiny", "smollm2": "neuron_pd.models.smollm2"}
NAMES: Final = tuple(RECIPES)

Progress = Callable[[str], None]


def recipe(name: str) -> Recipe:
    """The recipe of an embedded model. UsageError, naming the known ones, for any other name."""
    if name not in RECIPES:
        raise UsageError(f"unknown model {name!r}: the embedded models are {', '.join(NAMES)}")
    found = import_module(RECIPES[name]).RECIPE
    assert isinstance(found, Recipe)
    return found


def model_dir(name: str, out: Path | None = None, progress: Progress | None = None) -> Path:
    """The directory of the embedded model `name`, made first when it is missing; in `out`, or in the user's cache.

    Safe with several processes at once: one makes it, the others wait. What is returned is always whole. Raises
    UsageError for an unknown name or an `out` that holds something else, MissingDependency when a package is missing.
    """
    return made(recipe(name), out, progress or (lambda _: None))


def resolve_model(model: str, progress: Progress | None = None) -> str:
    """What to pass to vLLM for what a person typed: an embedded model's directory, else a path or hub name as it is."""
    if model in RECIPES:
        return str(model_dir(model, progress=progress))
    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model
