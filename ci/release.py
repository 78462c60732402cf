"""`python -m ci.release [--out DIR] [--tag vX.Y.Z]`: build the wheel and the sdist, and try each as a stranger would.

Each is installed alone in an environment that has nothing else, without torch and vLLM: the version, the help, a
command from the profiles, and a proxy that starts and ends. A CycloneDX SBOM of the wheel's environment lies beside it.
Needs the `release` extra. Exit status 1 with one line when something is not as it should be.
"""

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from ci.matrix.legs import ROOT
from neuron_pd import __version__

HEAVY = ("torch", "vllm", "nixl")
WITHIN_SECONDS = 30
LAUNCH = (
    *("launch", "--role", "prefill", "--instance", "p5en.48xlarge", "--model", "Qwen/Qwen3-32B"),
    *("--prefill-host", "10.0.0.1", "--decode-host", "10.0.0.2"),
)
PROXY = ("proxy", "--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:10")


class Unfit(Exception):
    """What was built cannot be released; the message says why, in one line."""


def check_tag(tag: str, changelog: str) -> None:
    """The tag names the version that the package has, and the changelog has a part about it. Unfit."""
    if tag != f"v{__version__}":
        raise Unfit(f"the tag is {tag} and neuron_pd.__version__ is {__version__}: they must agree")
    if f"## {__version__}" not in changelog.splitlines():
        raise Unfit(f"CHANGELOG.md has no part {__version__}")


def build(out: Path) -> list[Path]:
    """The sdist, and the wheel that is built from it."""
    _run(sys.executable, "-m", "build", "--outdir", str(out), str(ROOT))
    wanted = [out / f"neuron_pd-{__version__}{kind}" for kind in ("-py3-none-any.whl", ".tar.gz")]
    if missing := [path.name for path in wanted if not path.exists()]:
        raise Unfit(f"the build made no {missing[0]}")
    return wanted


class Clean:
    """An environment with one package and what that requires, without pip."""

    def __init__(self, place: Path, package: Path) -> None:
        venv.create(place, with_pip=False)
        self.place = place
        self.python = place / "bin" / "python"
        self.program = place / "bin" / "neuron-pd"
        _run(sys.executable, "-m", "pip", "--quiet", "--python", str(self.python), "install", str(package))

    def names(self) -> list[str]:
        """The distributions that it has."""
        listing = _run(sys.executable, "-m", "pip", "--python", str(self.python), "list", "--format", "json")
        return [str(one["name"]).lower() for one in json.loads(listing)]

    def sbom(self, path: Path) -> None:
        """Write what it has as CycloneDX JSON, neuron-pd at its root."""
        options = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
        bill = json.loads(_run(sys.executable, "-m", "cyclonedx_py", "environment", *options, str(self.python)))
        bill["metadata"]["component"]["version"] = __version__  # pyproject.toml says where it is, not what
        path.write_text(json.dumps(bill, indent=2) + "\n")

    def check(self) -> None:
        """All that needs no engine works. Unfit."""
        if heavy := set(HEAVY) & set(self.names()):
            raise Unfit(f"the light install brings {min(heavy)}")
        if (said := self._say("--version").strip()) != f"neuron-pd, version {__version__}":
            raise Unfit(f"--version says {said!r}, not {__version__}")
        self._say("--help")
        if "vllm serve" not in self._say(*LAUNCH):
            raise Unfit("`launch` prints no serve command")
        self._proxy()

    def _say(self, *arguments: str) -> str:
        return _run(str(self.program), *arguments, cwd=self.place)

    def _proxy(self) -> None:
        command = [str(self.program), *PROXY, "--port", str(_free_port())]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=self.place, env=_alone()) as proxy:
            assert proxy.stdout is not None
            started, _, _ = select.select([proxy.stdout], [], [], WITHIN_SECONDS)
            line = proxy.stdout.readline() if started else ""
            proxy.send_signal(signal.SIGTERM)
            _, errors = proxy.communicate(timeout=WITHIN_SECONDS)
        if not line.startswith("proxy on http://127.0.0.1:") or proxy.returncode:
            raise Unfit(f"the proxy ended with status {proxy.returncode}: {errors.strip().rpartition(chr(10))[2]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _alone() -> dict[str, str]:
    """The environment without a checkout on Python's path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _run(*command: str, cwd: Path = ROOT) -> str:
    """A command's output. Unfit with its last line when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=_alone())
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}").splitlines()[-1]
        raise Unfit(f"`{Path(command[0]).name} {' '.join(command[1:5])}` failed: {said}")
    return done.stdout


def release(out: Path) -> list[Path]:
    """Build, try and describe; the files that are to be released. Unfit."""
    out.mkdir(parents=True, exist_ok=True)
    packages = build(out)
    bill = out / f"neuron_pd-{__version__}.cdx.json"
    with tempfile.TemporaryDirectory() as work:
        for package in packages:
            clean = Clean(Path(work) / package.name, package)
            clean.check()
            if package.suffix == ".whl":
                clean.sbom(bill)
    return [*packages, bill]


def main(argv: Sequence[str] | None = None) -> int:
    """Make a release's files; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ci.release", description="Build what is released, and try it.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="where the files go [dist]")
    parser.add_argument("--tag", metavar="vX.Y.Z", help="the tag that is released; it must name the version")
    options = parser.parse_args(argv)
    try:
        if options.tag:
            check_tag(options.tag, (ROOT / "CHANGELOG.md").read_text())
        made = release(options.out)
    except Unfit as why:
        sys.stderr.write(f"ci.release: {why}\n")
        return 1
    sys.stdout.writelines(f"{path}\n" for path in made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
