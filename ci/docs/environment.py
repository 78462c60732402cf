"""The environment variables that the package reads, found in its source."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ci.matrix.legs import ROOT

PACKAGE = ROOT / "neuron_pd"
ENVIRON = re.compile(r"\benviron\b")


@cache
def variables(package: Path = PACKAGE) -> set[str]:
    """The names that are looked up in `os.environ`, or in an `environ` that stands for it.

    KeyError for one that is looked up by a constant that is not a text at the top of some module.
    """
    trees = [ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))]
    constants = dict(constant for tree in trees for constant in _constants(tree))
    keys = [key for tree in trees for node in ast.walk(tree) if (key := _key(node)) is not None]
    texts = {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return texts | {constants[key.id] for key in keys if isinstance(key, ast.Name) and key.id.isupper()}


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                yield target.id, node.value.value


def _key(node: ast.AST) -> ast.expr | None:
    """What is looked up, where `node` looks up a variable."""
    if isinstance(node, ast.Subscript) and ENVIRON.search(ast.unparse(node.value)):
        return node.slice
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return node.args[0] if ENVIRON.search(ast.unparse(node.func.value)) else None
    return None
