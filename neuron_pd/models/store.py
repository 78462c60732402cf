"""Where embedded models are kept, and how one gets there whole or not at all.

A model is made in a temporary sibling of its directory, described in a manifest (every file and its size), and renamed
into place. A directory without a manifest that fits is not a model. Makers exclude each other with a lock file, which
the kernel frees when its holder ends, however it ends.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuron_pd.errors import UsageError

MANIFEST: Final = "neuron-pd-model.json"
MAKING: Final = ".making-"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is made. `version` changes whenever what `make` writes does; `size` is what it takes, in bytes."""

    name: str
    version: int
    size: int
    make: Callable[[Path, Say], None]

    @property
    def directory_name(self) -> str:
        return f"{self.name}-{self.version}"


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """neuron-pd's cache: under XDG_CACHE_HOME when that is absolute (XDG base directories), else under ~/.cache."""
    root = Path((os.environ if environ is None else environ).get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else Path.home() / ".cache") / "neuron-pd"


def is_complete(directory: Path, recipe: Recipe) -> bool:
    """True when the directory holds what this recipe made: every file of its manifest, with its size."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        return bool(
            manifest["recipe"] == recipe.directory_name
            and all((directory / name).stat().st_size == size for name, size in manifest["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def made(recipe: Recipe, out: Path | None, say: Say) -> Path:
    """The recipe's directory, made when it is not there yet. UsageError when `out` holds something else."""
    target = (cache_dir() / "models" / recipe.directory_name if out is None else out.expanduser()).absolute()
    if is_complete(target, recipe):
        return target
    with _writable(target), _locked(target, lambda: say(f"waiting for another process that makes {target.name}")):
        if not is_complete(target, recipe):
            _refuse_foreign(target, recipe)
            _check_disk(target.parent, recipe)
            _make(recipe, target, say)
    return target


def _make(recipe: Recipe, target: Path, say: Say) -> None:
    for left_over in target.parent.glob(f".{target.name}{MAKING}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}{MAKING}", dir=target.parent))
    try:
        recipe.make(work, say)
        _write_manifest(work, recipe)
        work.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_manifest(work: Path, recipe: Recipe) -> None:
    files: dict[str, int] = {}
    for path in sorted(work.rglob("*")):
        if path.is_file():
            path.chmod(0o644)
            files[str(path.relative_to(work))] = path.stat().st_size
            _to_disk(path)
    manifest: dict[str, Any] = {"recipe": recipe.directory_name, "files": files}
    (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    _to_disk(work / MANIFEST)


def _to_disk(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _refuse_foreign(target: Path, recipe: Recipe) -> None:
    """A directory that a person filled with something else is never replaced; an older or broken model of ours is."""
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"{target} is not a directory: choose another --out")
    if any(target.iterdir()) and not (target / MANIFEST).exists():
        raise UsageError(f"{target} holds something that is not the {recipe.name} model: choose an empty --out")


def _check_disk(parent: Path, recipe: Recipe) -> None:
    free = shutil.disk_usage(parent).free
    if free < recipe.size:
        raise UsageError(
            f"too little disk for {recipe.name}: it needs {recipe.size / 2**20:.0f} MiB and {parent} has "
            f"{free / 2**20:.0f} MiB free; free some, or set XDG_CACHE_HOME"
        )


@contextmanager
def _writable(target: Path) -> Iterator[None]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"cannot make a model in {target}: {error.strerror}; choose another --out") from error


@contextmanager
def _locked(target: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of `target`. Its file stays in the cache: removing it would let two holders in."""
    locks = cache_dir() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / hashlib.sha256(str(target).encode()).hexdigest()[:16]).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
