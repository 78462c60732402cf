"""What the connector touches of vLLM, derived from its own source: so nothing that is added there is forgotten here.

Derived are imports, attributes of imported modules, overridden methods with their parameters, methods called through
`super()`, attributes of `self` that only upstream can have set, and attributes of parameters that are annotated with a
vLLM class. What is reached through `Any` is listed in `touched.yaml`.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ci.seam.tree import Function, assigned_to_self, own_members

Name = tuple[str, str]  # module, name


@dataclass
class Class:
    """One of our classes over one of vLLM's. `bases` are vLLM's, `parents` ours."""

    name: str
    where: str
    bases: list[Name]
    parents: list[str]
    methods: dict[str, Function]
    own: set[str]
    used: set[str] = field(default_factory=set)  # attributes of self that are read
    supers: set[str] = field(default_factory=set)  # methods called through super()


@dataclass
class Touched:
    """All of a package. `names` and `attributes` say where each is used."""

    names: dict[Name, str] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    attributes: dict[tuple[Name, str], str] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)  # every attribute name that is written anywhere


def touched(package: Path) -> Touched:
    """Read the modules of a package."""
    found = Touched()
    for path in sorted(package.glob("*.py")):
        _Module(path, found).read()
    return found


class _Module:
    def __init__(self, path: Path, found: Touched) -> None:
        self._where = path.name
        self._tree = ast.parse(path.read_text())
        self._found = found
        self._imported: dict[str, Name] = {}

    def read(self) -> None:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
                for alias in node.names:
                    name = (node.module or "", alias.name)
                    self._imported[alias.asname or alias.name] = name
                    self._found.names[name] = self._where
            elif isinstance(node, ast.Import):
                self._imported |= {alias.name: (alias.name, "") for alias in node.names if alias.name == "vllm"}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute):
                self._found.words.add(node.attr)
                self._attribute(node)
            elif isinstance(node, Function):
                self._parameters(node)
            elif isinstance(node, ast.ClassDef):
                self._class(node)

    def _attribute(self, node: ast.Attribute) -> None:
        """One of an imported module, or of a class that is used by its name."""
        if isinstance(node.value, ast.Name) and (name := self._imported.get(node.value.id)):
            self._found.attributes[name, node.attr] = self._where

    def _parameters(self, function: Function) -> None:
        annotated = {
            argument.arg: name
            for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
            if (name := self._imported.get(_annotation(argument.annotation)))
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in annotated:
                self._found.attributes[annotated[node.value.id], node.attr] = self._where

    def _class(self, node: ast.ClassDef) -> None:
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        methods = {statement.name: statement for statement in node.body if isinstance(statement, Function)}
        self._found.classes[node.name] = Class(
            name=node.name,
            where=self._where,
            bases=[self._imported[base] for base in bases if base in self._imported],
            parents=[base for base in bases if base not in self._imported],
            methods=methods,
            own={*own_members(node), *assigned_to_self(node)},
            used=set(_used(node.body)),
            supers=set(_supers(node)),
        )


def _annotation(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return node.id if isinstance(node, ast.Name) else ""


def _used(body: Iterable[ast.AST]) -> Iterator[str]:
    for node in (node for statement in body for node in ast.walk(statement)):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()):
                yield name


def _supers(body: ast.AST) -> Iterator[str]:
    for node in ast.walk(body):
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                yield name
