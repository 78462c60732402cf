"""Importing the packages that make a model, with a line that helps when that does not work."""

from collections.abc import Iterator
from contextlib import contextmanager

from neuron_pd.errors import MissingDependency

INSTALL = "pip install 'neuron-pd[cpu]'"
UNMATCHED = "pip uninstall -y torchvision torchaudio torchcodec"


@contextmanager
def importing(install: str = INSTALL) -> Iterator[None]:
    """Around import statements: MissingDependency, saying what to run, when a package is missing or broken.

    A broken torchvision surfaces as a RuntimeError, a missing shared library as an OSError.
    """
    try:
        yield
    except (ImportError, RuntimeError, OSError) as error:
        raise MissingDependency(explain(error, install)) from error


def explain(error: BaseException, install: str = INSTALL) -> str:
    """One line on why an import failed, and what to run. Recognises companions of torch that do not match it."""
    text = " ".join(" ".join(str(link) for link in _chain(error)).split())
    if any(sign in text for sign in ("torchvision", "torchaudio", "torchcodec")):
        return f"torchvision, torchaudio or torchcodec does not match this torch: run `{UNMATCHED}`"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"cannot import {error.name}: run `{install}`"
    return f"cannot import what this needs ({text[:200]}): run `{install}`"


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what led to it."""
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links
