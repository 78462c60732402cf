import tomllib
from pathlib import Path

import pytest

from neuron_pd.core import versions


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("0.28.9", False),
        ("0.29.0", True),
        ("0.32.0+cpu", True),
        ("0.32.1rc1", True),
        ("0.33.0", False),
        ("1.0", False),
        ("dev", False),
    ],
)
def test_both_ends_are_included(monkeypatch: pytest.MonkeyPatch, version: str, tested: bool) -> None:
    monkeypatch.setattr(versions, "TESTED_VLLM", ((0, 29), (0, 32)))
    assert versions.is_tested(version) is tested
    assert versions.tested_releases() == "0.29 to 0.32"


def test_one_release_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "TESTED_VLLM", ((0, 32), (0, 32)))
    assert versions.tested_releases() == "0.32"


@pytest.mark.parametrize(
    ("version", "old"),
    [("1.3.2", True), ("1.4", True), ("1.4.1", False), ("1.5.1", False), ("1.10.0", False), ("", False)],
)
def test_an_old_nixl(version: str, old: bool) -> None:
    assert versions.is_old_nixl(version) is old


def test_the_extras_ask_for_what_was_tested() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    wanted = f"nixl>={versions.MINIMUM_NIXL},<2"
    assert all(wanted in project["optional-dependencies"][extra] for extra in ("cpu", "cuda"))
    (low, first), (high, last) = versions.TESTED_VLLM
    assert f"vllm>={low}.{first},<{high}.{last + 1}" in project["optional-dependencies"]["cuda"]
