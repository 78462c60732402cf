"""Fixtures for the commands that start processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Shell
from tests.launcher.plans import left_of


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell; after the test nothing that it started may be left."""
    yield Shell(tmp_path)
    left = left_of(tmp_path)
    for process in left:
        process.kill()
    assert not left, f"left behind: {[process.cmdline() for process in left]}"
