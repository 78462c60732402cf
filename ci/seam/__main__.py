"""`python -m ci.seam [--vllm X.Y.Z]...`: whether what the connector touches of vLLM is there, release by release.

Without --vllm: every tested release, and the one after. The installed release is read where it is installed, others
from their wheel, which may be one for accelerators. Exit status 1 when something is missing in a tested release, 2 for
a version that is none, 3 when a release could not be had (the others were checked).
"""

import argparse
import ast
import sys
from importlib.util import find_spec
from pathlib import Path

import yaml

from ci.matrix.legs import ROOT
from ci.seam.touched import Class, Touched, touched
from ci.seam.tree import Function, Tree
from ci.sources import NotAvailable, wheel_package
from ci.upstream_suites import installed_vllm
from neuron_pd.core.versions import is_tested

PACKAGE = ROOT / "neuron_pd" / "connector"
RELEASES = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
NOT_AVAILABLE = 3


def main(argv: list[str] | None = None) -> int:
    """Check the releases; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ci.seam", description="Check the vLLM names that we touch.")
    parser.add_argument("--vllm", action="append", metavar="X.Y.Z", help="a release; may be given several times")
    releases = parser.parse_args(argv).vllm or RELEASES
    ours, listed = touched(PACKAGE), listed_attributes()
    status = 0
    for release in releases:
        try:
            tree = tree_of(release)
        except NotAvailable as reason:
            sys.stdout.write(f"{release}: skipped: its wheel is not available here: {reason}\n")
            status = status or NOT_AVAILABLE
            continue
        missing = problems(tree, ours, listed)
        sys.stdout.write(f"{release}: {len(missing)} missing or changed of {size(ours, listed)} touched\n")
        sys.stdout.writelines(f"  {problem}\n" for problem in missing)
        if missing and is_tested(release):
            status = 1
    return status


def tree_of(release: str) -> Tree:
    """The release's source. NotAvailable."""
    if release == installed_vllm() and (spec := find_spec("vllm")) and spec.submodule_search_locations:
        return Tree(Path(spec.submodule_search_locations[0]).parent)
    return Tree(wheel_package(release))


def listed_attributes() -> dict[str, list[str]]:
    """touched.yaml."""
    found: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("touched.yaml").read_text())
    return found


def size(ours: Touched, listed: dict[str, list[str]]) -> int:
    """How many things are checked."""
    upstream = [entry for entry in ours.classes.values() if upstream_bases(ours, entry)]
    methods = sum(len(entry.supers | entry.methods.keys()) for entry in upstream)
    return len(ours.names) + len(ours.attributes) + methods + sum(map(len, listed.values()))


def problems(tree: Tree, ours: Touched, listed: dict[str, list[str]]) -> list[str]:
    """What of ours does not fit this release, one line each."""
    found = [
        f"{where}: no {module}.{name}" for (module, name), where in ours.names.items() if not tree.has(module, name)
    ]
    found += [line for entry in ours.classes.values() for line in _class_problems(tree, ours, entry)]
    for ((module, name), attribute), where in ours.attributes.items():
        if not _has_attribute(tree, module, name, attribute):
            found.append(f"{where}: {module}.{name} has no {attribute}")
    for path, attributes in listed.items():
        module, _, name = path.partition(":")
        members = tree.members(module, name)
        found += [f"touched.yaml: {path} has no {attribute}" for attribute in attributes if attribute not in members]
    return sorted(set(found))


def _has_attribute(tree: Tree, module: str, name: str, attribute: str) -> bool:
    if module == "vllm" and not name:
        return attribute in tree.lazy or tree.has("vllm", attribute)
    if tree.has_module(f"{module}.{name}"):
        return tree.has(f"{module}.{name}", attribute)
    found = tree.resolve(module, name)
    # A name that is no class (a logger, the platform) is only known to be there.
    return found is None or attribute in tree.members(module, name)


def upstream_bases(ours: Touched, entry: Class) -> list[tuple[str, str]]:
    """The vLLM classes that one of ours stands on, directly or by its own parents."""
    inherited = [
        base for name in entry.parents if name in ours.classes for base in upstream_bases(ours, ours.classes[name])
    ]
    return entry.bases + inherited


def _class_problems(tree: Tree, ours: Touched, entry: Class) -> list[str]:
    bases = upstream_bases(ours, entry)
    members = {name: member for base in bases for name, member in tree.members(*base).items()}
    if not members:
        return []
    own = entry.own.union(*(ours.classes[name].own for name in entry.parents if name in ours.classes))
    there = members.keys() | set(dir(object))
    missing = sorted(name for name in (entry.used - own) | entry.supers if name not in there)
    found = [f"{entry.where}: {entry.name}: upstream has no {name}" for name in missing]
    for name, method in entry.methods.items():
        theirs = members.get(name)
        if theirs is not None and (reason := unfit(theirs, method)):
            found.append(f"{entry.where}: {entry.name}.{name}: {reason}")
    return found


def unfit(theirs: Function, ours: Function) -> str:
    """Why a call that theirs takes is not one that ours takes; empty when it is."""
    if (ours.args.vararg and ours.args.kwarg) or ours.name == "__init__":  # a constructor is not called through a base
        return ""
    wanted, given = _parameters(theirs), _parameters(ours)
    if not ours.args.vararg and given[: len(wanted)] != wanted:
        return f"takes ({', '.join(given)}) and upstream's ({', '.join(wanted)})"
    needed = len(given) - len(ours.args.defaults)
    return f"needs {', '.join(given[len(wanted) : needed])} too" if needed > len(wanted) else ""


def _parameters(function: Function) -> list[str]:
    """Without the first, which is the object or the class, but for a static method."""
    decorators = [node.id for node in function.decorator_list if isinstance(node, ast.Name)]
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names if "staticmethod" in decorators else names[1:]


if __name__ == "__main__":
    sys.exit(main())
