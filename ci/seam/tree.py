"""A release of vLLM as source: which names its modules bind, and what its classes have. Nothing is imported."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Member = Function | None  # None: an attribute


@dataclass(frozen=True)
class Found:
    """A definition, and the module that it stands in."""

    module: str
    node: ast.AST


class Tree:
    """The package directory `root/vllm`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[str, dict[str, ast.AST] | None] = {}

    def has(self, module: str, name: str) -> bool:
        """Whether `from module import name` finds something."""
        return name in (self._bindings(module) or {}) or self._path(f"{module}.{name}") is not None

    def has_module(self, module: str) -> bool:
        return self._path(module) is not None

    def resolve(self, module: str, name: str) -> Found | None:
        """The class or function behind a name, through imports and aliases within vLLM."""
        node = (self._bindings(module) or {}).get(name)
        if isinstance(node, ast.ImportFrom) and node.module:
            alias = next(alias for alias in node.names if (alias.asname or alias.name) == name)
            return self.resolve(_absolute(node, module, self._is_package(module)), alias.name)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            return self.resolve(module, node.value.id)
        return Found(module, node) if isinstance(node, ast.ClassDef | Function) else None

    def members(self, module: str, name: str) -> dict[str, Member]:
        """What an object of a class has, its bases' included: methods with their definition, attributes without."""
        found = self.resolve(module, name)
        if found is None or not isinstance(found.node, ast.ClassDef):
            return {}
        inherited: dict[str, Member] = {}
        for base in found.node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(plain, ast.Name):
                inherited |= self.members(found.module, plain.id)
        return inherited | own_members(found.node)

    def _bindings(self, module: str) -> dict[str, ast.AST] | None:
        if module not in self._modules:
            path = self._path(module)
            self._modules[module] = None if path is None else dict(_bound(ast.parse(path.read_text()).body))
        return self._modules[module]

    def _path(self, module: str) -> Path | None:
        place = self._root.joinpath(*module.split("."))
        return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)

    def _is_package(self, module: str) -> bool:
        path = self._path(module)
        return path is not None and path.name == "__init__.py"

    @cached_property
    def lazy(self) -> frozenset[str]:
        """What `vllm` itself hands out on first use (its MODULE_ATTRS), and its version, which the build writes."""
        names = {"__version__"}
        for node in (self._bindings("vllm") or {}).values():
            value = getattr(node, "value", None)
            if isinstance(value, ast.Dict):
                names |= {
                    key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
                }
        return frozenset(names)


def own_members(node: ast.ClassDef) -> dict[str, Member]:
    """The members that a class's own body makes, the attributes that its methods assign to `self` among them."""
    members: dict[str, Member] = {}
    for statement in node.body:
        if isinstance(statement, Function):
            members |= dict.fromkeys(assigned_to_self(statement), None)
        for name, bound in _bound([statement]):
            members[name] = bound if isinstance(bound, Function) else None
    return members


def assigned_to_self(function: ast.AST) -> Iterator[str]:
    """The attributes of `self` that are assigned anywhere in a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _bound(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """The names that statements bind, also below `if` and `try`, with what binds them."""
    for node in body:
        if isinstance(node, ast.ClassDef | Function):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from ((name.id, node) for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            handlers = [handler.body for handler in node.handlers] if isinstance(node, ast.Try) else []
            for part in (*handlers, node.orelse, node.body):
                yield from _bound(part)


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The module that an import names, relative ones included."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *filter(None, [node.module])])
