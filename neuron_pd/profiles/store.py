"""Where profiles are: those that ship with neuron-pd, and a person's own, which win.

A file says `kind: instance`, `kind: model` or `kind: base`. `extends: NAME` takes everything from another file of the
same directory, or of those that ship, and puts this file's keys over it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from neuron_pd.errors import UsageError
from neuron_pd.profiles.instance import Instance, parse_instance
from neuron_pd.profiles.model import Model, parse_model
from neuron_pd.profiles.schema import merged

SUFFIXES: Final = (".yaml", ".yml")
KINDS: Final = ("instance", "model", "base")
PARSERS: Final[dict[str, Callable[[Any, str], Instance | Model]]] = {"instance": parse_instance, "model": parse_model}
DEPTH: Final = 4  # files that may extend one another


def shipped_dir() -> Path:
    """Inside the wheel, or at the top of a source tree."""
    packaged = Path(__file__).with_name("files")
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "launch" / "profiles"


@dataclass(frozen=True, slots=True)
class Profiles:
    """`own` are files and directories of a person's own; a later one wins over an earlier one."""

    own: tuple[Path, ...] = ()
    _read: dict[str, Any] = field(default_factory=dict, compare=False)

    def instances(self) -> list[str]:
        return sorted(self._all("instance"))

    def models(self) -> list[str]:
        return sorted(self._all("model"))

    def instance(self, name: str) -> Instance:
        """The instance of that name, or the one in the file that `name` is the path of. UsageError."""
        if name.endswith(SUFFIXES):
            return _own_instance(Path(name).expanduser())
        found = self._all("instance").get(name)
        if found is None:
            known = ", ".join(self.instances())
            raise UsageError(f"unknown instance {name!r}: use {known}, or the path of a profile of your own (*.yaml)")
        return parse_instance(*found)

    def model(self, name: str) -> Model | None:
        """The model known by that name, hub name, or directory name; None when there is none."""
        wanted = name.rstrip("/").casefold()
        for body, where in self._all("model").values():
            names = [str(body.get("name", "")), *(body.get("hub") or [])]
            ends = [known.casefold().rsplit("/", 1)[-1] for known in names]
            if wanted in (known.casefold() for known in names) or wanted.rsplit("/", 1)[-1] in ends:
                return parse_model(body, where)
        return None

    def _all(self, kind: str) -> dict[str, tuple[dict[str, Any], str]]:
        """Bodies and places by name. A person's own are checked when they are read, the rest by the tests."""
        if kind not in self._read:
            found: dict[str, tuple[dict[str, Any], str]] = {}
            for path in _files(shipped_dir()):
                body = dict(_load(path))
                if body.pop("kind") == kind:
                    found[body["name"]] = (body, str(path))
            for path in (path for own in self.own for path in _files(own)):
                body = dict(_load(path))
                if body.pop("kind") == kind:
                    found[PARSERS[kind](body, str(path)).name] = (body, str(path))
            self._read[kind] = found
        result: dict[str, tuple[dict[str, Any], str]] = self._read[kind]
        return result


def _own_instance(path: Path) -> Instance:
    body = dict(_load(path))
    if (kind := body.pop("kind")) != "instance":
        raise UsageError(f"{path} is a profile of kind {kind}: an instance is needed here")
    return parse_instance(body, str(path))


def _files(place: Path) -> Iterable[Path]:
    place = place.expanduser()
    if place.is_dir():
        return sorted(path for path in place.iterdir() if path.suffix in SUFFIXES)
    return [place]


@cache
def _load(path: Path, depth: int = 0) -> dict[str, Any]:
    """The file's mapping over those that it extends."""
    try:
        body = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise UsageError(f"cannot read the profile {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(body, dict):
        raise UsageError(f"{path} must be a mapping")
    if body.get("kind") not in KINDS:
        raise UsageError(f"{path}: kind is {body.get('kind')!r}: use {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    base = body.pop("extends", None)
    if base is None:
        return body
    if depth >= DEPTH:
        raise UsageError(f"{path}: extends goes round, or more than {DEPTH} files deep")
    return merged(_load(_base(path, base), depth + 1), body)


def _base(path: Path, name: Any) -> Path:
    for directory in (path.parent, shipped_dir()):
        if isinstance(name, str) and (found := directory / f"{name}.yaml").is_file():
            return found
    raise UsageError(f"{path}: extends {name!r}, and there is no {name}.yaml beside it or among those that ship")
