"""Getting the proxies to compare with: from where they are published into the user's cache.

`example` is vLLM's multi-turn example proxy, a file of vLLM's source release; `vllm-router` is a program from its
wheel, in a virtual environment of its own.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from neuron_pd.models.store import cache_dir

VLLM, ROUTER = "0.32.0", "0.1.17"
EXAMPLE = "examples/disaggregated/disaggregated_serving/disagg_proxy_multiturn.py"
EXAMPLE_NEEDS = ("fastapi", "httpx", "uvicorn")
BENCHMARK = "benchmarks/multi_turn/benchmark_serving_multi_turn.py"
BENCHMARK_NEEDS = ("aiohttp", "numpy", "pandas", "tqdm", "transformers", "vllm")
BUILD_TOOLS = ("setuptools>=77,<81", "setuptools-scm", "setuptools-rust", "wheel", "packaging")
LONGEST_SECONDS = 600

Say = Callable[[str], None]


class Unavailable(Exception):
    """This peer cannot be had here; the message is the reason."""


def example(say: Say) -> Path:
    """The example proxy's file. Preparing a source release's metadata runs its set-up script, which imports torch."""
    _need(EXAMPLE_NEEDS)
    return _from_source(EXAMPLE, say)


def multi_turn_benchmark(say: Say) -> Path:
    """The script of vLLM's multi-turn benchmark, what it imports beside it."""
    _need(BENCHMARK_NEEDS)
    return _from_source(BENCHMARK, say)


def _need(packages: Iterable[str]) -> None:
    if missing := [name for name in packages if find_spec(name) is None]:
        raise Unavailable(f"it needs {', '.join(missing)}: pip install {' '.join(missing)}")


def _from_source(name: str, say: Say) -> Path:
    """A file of vLLM's source release, in the cache; what is ours to run from it is fetched together."""
    home = _home() / f"vllm-{VLLM}-source"
    place = home / name
    if not place.exists():
        if find_spec("torch") is None:
            raise Unavailable("vLLM's source release cannot be prepared without torch: install neuron-pd[cpu]")
        say(f"fetching vLLM {VLLM}'s source release (45 MB)")
        with tempfile.TemporaryDirectory() as folder:
            _extract(_source_release(Path(folder)), home)
        if not place.exists():
            raise Unavailable(f"vLLM {VLLM}'s source release holds no {name}")
    return place


def router(say: Say) -> Path:
    """The router's program."""
    home = _home() / f"vllm-router-{ROUTER}"
    program = home / "bin" / "vllm-router"
    if not program.exists():
        say(f"installing vllm-router {ROUTER}")
        try:
            _run(sys.executable, "-m", "venv", str(home))
            _run(str(home / "bin" / "python"), "-m", "pip", "install", f"vllm-router=={ROUTER}")
        except Unavailable:
            shutil.rmtree(home, ignore_errors=True)
            raise
    return program


def _home() -> Path:
    return cache_dir() / "peers"


def _source_release(folder: Path) -> Path:
    tools = folder / "tools"
    _run(sys.executable, "-m", "pip", "install", "--target", str(tools), *BUILD_TOOLS)
    environment = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VLLM, "PYTHONPATH": str(tools)}
    _run(
        *(sys.executable, "-m", "pip", "download", f"vllm=={VLLM}", "--dest", str(folder)),
        *("--no-deps", "--no-binary", "vllm", "--no-build-isolation"),
        environment=environment,
    )
    archives = list(folder.glob("vllm-*.tar.gz"))
    if not archives:
        raise Unavailable("no source release was downloaded")
    return archives[0]


def _extract(archive: Path, home: Path) -> None:
    """The example and the benchmark's folder, each file whole or not at all."""
    with tarfile.open(archive) as members:
        for member in members:
            name = member.name.partition("/")[2]
            wanted = name == EXAMPLE or Path(name).parent == Path(BENCHMARK).parent
            if wanted and member.isfile() and (content := members.extractfile(member)):
                place = home / name
                place.parent.mkdir(parents=True, exist_ok=True)
                partial = place.with_suffix(".partial")
                partial.write_bytes(content.read())
                partial.rename(place)


def _run(*argv: str, environment: Mapping[str, str] | None = None) -> None:
    try:
        subprocess.run(
            argv, env={**os.environ, **(environment or {})}, check=True, capture_output=True, text=True,
            timeout=LONGEST_SECONDS,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()] or ["no message"]
        said = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise Unavailable(f"{' '.join(argv[1:4])} failed: {said[:200]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(argv[1:4])}: {error}"[:200]) from error
