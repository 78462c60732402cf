"""The static check, on a package and a vLLM of a few lines; and on the vLLM that is installed."""

from pathlib import Path

import pytest

from ci.seam.__main__ import PACKAGE, listed_attributes, main, problems
from ci.seam.touched import touched
from ci.seam.tree import Tree
from ci.upstream_suites import installed_vllm

VLLM = {
    "__init__.py": "MODULE_ATTRS = {'LLM': '.x:LLM'}",
    "base.py": """
class Root:
    mode: str = ""
    def __init__(self, config):
        self.config = config
    def finished(self, request, block_ids):
        return False
""",
    "alias.py": "from vllm.base import Root\nScheduler = Root\n",
    "request.py": "class Request:\n    tokens: int = 0\n    @property\n    def blocks(self): ...\n",
    "worker.py": "try:\n    import nixl\n    agent = nixl.agent\nexcept ImportError:\n    agent = None\n",
}
OURS = """
import vllm
from vllm import worker
from vllm.alias import Scheduler
from vllm.request import Request

VERSION = vllm.__version__

class Mixin(Scheduler):
    def finished(self, request: Request, block_ids):
        self.seen = request.tokens + request.blocks
        return super().finished(request, block_ids) and self.config and self.mode and self.seen

class Ours(Mixin, Scheduler):
    def patch(self):
        worker.agent = None
"""


def check(tmp_path: Path, **changed: str) -> list[str]:
    """What is found of OURS in VLLM with some modules changed."""
    for name, text in {**VLLM, **{f"{name}.py": text for name, text in changed.items()}}.items():
        (tmp_path / "vllm").mkdir(exist_ok=True)
        (tmp_path / "vllm" / name).write_text(text)
    package = tmp_path / "ours"
    package.mkdir(exist_ok=True)
    (package / "scheduler.py").write_text(OURS)
    return problems(Tree(tmp_path), touched(package), {"vllm.request:Request": ["tokens"]})


def test_what_fits_has_no_problems(tmp_path: Path) -> None:
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"alias": "from vllm.base import Root\n"}, "scheduler.py: no vllm.alias.Scheduler"),
        ({"worker": "nothing = 1"}, "scheduler.py: vllm.worker has no agent"),
        ({"request": "class Request:\n    tokens: int = 0\n"}, "scheduler.py: vllm.request.Request has no blocks"),
        ({"request": "class Request:\n    blocks: int = 0\n"}, "touched.yaml: vllm.request:Request has no tokens"),
        ({"base": VLLM["base.py"].replace("mode", "kind")}, "scheduler.py: Mixin: upstream has no mode"),
        (
            {"base": VLLM["base.py"].replace("self.config", "self.settings")},
            "scheduler.py: Mixin: upstream has no config",
        ),
        ({"base": VLLM["base.py"].replace("finished", "done")}, "scheduler.py: Mixin: upstream has no finished"),
        (
            {"base": VLLM["base.py"].replace("block_ids", "block_ids, status")},
            "scheduler.py: Mixin.finished: takes (request, block_ids) and upstream's (request, block_ids, status)",
        ),
    ],
)
def test_what_is_gone_or_moved_is_named(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    assert said in check(tmp_path, **changed)


def test_what_is_listed_by_hand_is_used_by_the_connector() -> None:
    words = touched(PACKAGE).words
    assert [name for names in listed_attributes().values() for name in names if name not in words] == []


def test_the_connector_derives_much_to_check() -> None:
    found = touched(PACKAGE)
    assert ("vllm.v1.request", "Request") in found.names
    assert {"request_finished", "build_connector_meta"} <= found.classes["LeaseOnRead"].supers
    assert len(found.names) + len(found.attributes) > 50


@pytest.mark.skipif(installed_vllm() is None, reason="vLLM is not installed: pip install 'neuron-pd[cpu]'")
def test_the_installed_release_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--vllm", str(installed_vllm())]) == 0
    assert ": 0 missing or changed of " in capsys.readouterr().out


def test_a_release_that_cannot_be_had_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"XDG_CACHE_HOME": tmp_path, "PIP_NO_INDEX": 1, "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert main(["--vllm", "0.1.0"]) == 3
    assert "0.1.0: skipped: its wheel is not available here" in capsys.readouterr().out
