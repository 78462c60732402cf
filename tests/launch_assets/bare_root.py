"""A root file system with a shell and small tools in it, and recorders in place of all that would fetch or install.

A recorder writes its words down and does what its text says. Needs root, to make the directory a process's root.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = (
    "bash", "awk", "basename", "cat", "dirname", "find", "grep", "gzip", "head", "install", "ln", "mkdir", "mktemp",
    "readlink", "rm", "sha256sum", "sort", "tail", "tar", "tr",
)  # fmt: skip
CHROOT = "/usr/sbin/chroot"
RECORDER = """#!/bin/bash
words="$*"
echo "${0##*/} ${words//$'\\n'/ }" >> /record
"""


class BareRoot:
    def __init__(self, place: Path) -> None:
        if os.geteuid() != 0 or not Path(CHROOT).exists():
            pytest.skip("only root may change a process's root directory")
        self.place = place
        for name in ("etc", "tmp", "dev", "usr/bin", "usr/lib", "usr/lib64", "opt"):
            (place / name).mkdir(parents=True)
        for name in ("bin", "lib", "lib64"):
            (place / name).symlink_to(f"usr/{name}")
        (place / "dev/null").write_text("")
        for tool in TOOLS:
            self.tool(tool)

    def recorder(self, name: str, does: str = "") -> None:
        """A program on the path, or at the path, of that name."""
        program = self.place / (name.lstrip("/") if "/" in name else f"usr/bin/{name}")
        program.parent.mkdir(parents=True, exist_ok=True)
        program.unlink(missing_ok=True)
        program.write_text(RECORDER + does)
        program.chmod(0o755)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """A script and its words, or -c and a text, in bash."""
        environment = {"PATH": "/usr/bin:/bin"}
        return subprocess.run(
            [CHROOT, self.place, "bash", *command], env=environment, capture_output=True, text=True, check=False
        )

    def record(self) -> list[str]:
        """What the recorders were called with since it was last asked."""
        path = self.place / "record"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def read(self, path: str) -> str:
        return (self.place / path.lstrip("/")).read_text()

    def tool(self, tool: str) -> None:
        """A program of this machine, with its libraries."""
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"{tool} is not here")
        shutil.copy(Path(found).resolve(), self.place / "usr/bin" / tool)
        linked = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
        for library in {word for word in linked.split() if word.startswith("/")}:
            target = self.place / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy(Path(library).resolve(), target)
