"""No flag of vLLM's is written by hand in launch/: the launcher makes them all from the profiles."""

import re
from pathlib import Path

import pytest

from neuron_pd.launcher.flags import as_words
from neuron_pd.launcher.serve import plan
from neuron_pd.profiles import ROLES
from tests.launch_assets.test_committed import MADE
from tests.launch_assets.tools import LAUNCH
from tests.launcher.engines import request

PROFILES = LAUNCH / "profiles"
COMMON = {"--host", "--port"}  # the proxy's too
HAND_WRITTEN = sorted(
    path
    for path in LAUNCH.rglob("*")
    if path.is_file() and PROFILES not in path.parents and not MADE.match(path.read_text())
)


def flags_and_variables() -> set[str]:
    found: set[str] = set()
    for instance, model in (
        ("cpu", "a/b"),
        ("p5en.48xlarge", "Qwen/Qwen3-32B"),
        ("trn2.48xlarge", "openai/gpt-oss-20b"),
    ):
        for role in ROLES:
            spec = plan(request(instance, role, model=model))
            found |= {word for word in as_words(spec.flags) if word.startswith("--")} | set(spec.environment())
    return found - COMMON


def test_the_launcher_makes_some() -> None:
    assert flags_and_variables() >= {
        "--kv-transfer-config",
        "--tensor-parallel-size",
        "FI_PROVIDER",
        "NEURON_VISIBLE_DEVICES",
    }


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=lambda path: str(path.relative_to(LAUNCH)))
def test_a_file_written_by_hand_has_none_of_them(path: Path) -> None:
    words = set(re.findall(r"(?<![\w-])(?:--[a-z][\w-]*|[A-Z][A-Z0-9_]+)", path.read_text()))
    assert words & flags_and_variables() == set()
