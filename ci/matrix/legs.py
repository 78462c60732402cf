"""The legs of `ci/matrix.yaml`: each row's product of accelerators, vLLM releases, NIXL backends and retentions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / "ci" / "matrix.yaml"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A kind of machine: `instance` is what its legs are made for, "" for any, `runs_on` a workflow's labels."""

    name: str
    runs_on: str | list[str]
    releases: Mapping[str, str]
    backends: Mapping[str, Mapping[str, str]]
    packages: tuple[str, ...] = ()
    index: str = ""
    instance: str = ""

    @property
    def is_hosted(self) -> bool:
        """Whether the workflows' own runners will do; others are found by several labels."""
        return isinstance(self.runs_on, str)

    @property
    def label(self) -> str:
        """The machine's kind where it is a particular one, else the accelerator's name."""
        return self.instance.partition(".")[0] or self.name


@dataclass(frozen=True, slots=True)
class Leg:
    """One combination: what is installed, which tests run on it, and which modules of ci after them."""

    accelerator: Accelerator
    vllm: str
    backend: str
    retention: str
    tests: tuple[str, ...]
    modules: tuple[str, ...] = ()
    staged: bool = False

    @property
    def name(self) -> str:
        name = f"{self.accelerator.name}-vllm{self.vllm}-{self.backend}-{self.retention}"
        return f"{name}-staged" if self.staged else name

    @property
    def release(self) -> str:
        """The requirement that brings vLLM."""
        return self.accelerator.releases[self.vllm]

    @property
    def requirements(self) -> list[str]:
        """What its environment has beside neuron-pd."""
        return [self.release, self.accelerator.backends[self.backend]["nixl"], *self.accelerator.packages]

    @property
    def within(self) -> str:
        """The module that runs its tests where the backend can work; "" where it works anywhere."""
        return self.accelerator.backends[self.backend].get("within", "")

    @property
    def environment(self) -> dict[str, str]:
        """What its tests are told."""
        told = {"NEURON_PD_BACKENDS": self.backend.upper(), "NEURON_PD_TEST_RETENTION": self.retention}
        return {**told, "NEURON_PD_BUFFER": "staged"} if self.staged else told


def legs(path: Path = MATRIX) -> dict[str, Leg]:
    """The matrix, by name, in its order. ValueError for two legs of one name."""
    matrix = yaml.safe_load(path.read_text())
    accelerators = {name: _accelerator(name, row) for name, row in matrix["accelerators"].items()}
    found: dict[str, Leg] = {}
    for row in matrix["legs"]:
        for leg in _product(accelerators, **row):
            if leg.name in found:
                raise ValueError(f"{path.name}: {leg.name} is there twice")
            found[leg.name] = leg
    return found


def _accelerator(name: str, row: dict[str, Any]) -> Accelerator:
    runs_on = row.pop("runs-on")
    packages = tuple(row.pop("packages", ()))
    return Accelerator(name, runs_on, packages=packages, **row)


def _product(
    accelerators: Mapping[str, Accelerator],
    accelerator: list[str],
    vllm: list[str],
    backend: list[str],
    retention: list[str],
    tests: list[str],
    modules: tuple[str, ...] | list[str] = (),
    staged: bool = False,
) -> Iterator[Leg]:
    for machine, release, over, kept in product(accelerator, vllm, backend, retention):
        yield Leg(accelerators[machine], release, over, kept, tuple(tests), tuple(modules), staged)
