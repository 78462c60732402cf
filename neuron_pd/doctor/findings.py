"""The contract of a probe: it looks at one thing, and says what it found and the line that fixes it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Place = TypeVar("Place")


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, and not as well as it could; or what was found cannot be judged from here
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"  # not there, and not needed for this role on this kind of machine


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe says: `seen` in a line, and `fix`, the line that changes it, for a warning and a failure.

    `about` names the one of several (an engine, a port) that it is about.
    """

    verdict: Verdict
    seen: str
    fix: str = ""
    about: str = ""


def ok(seen: str, about: str = "") -> Finding:
    return Finding(Verdict.OK, seen, about=about)


def warning(seen: str, fix: str, about: str = "") -> Finding:
    return Finding(Verdict.WARNING, seen, fix, about)


def failed(seen: str, fix: str, about: str = "") -> Finding:
    return Finding(Verdict.FAILED, seen, fix, about)


def not_applicable(seen: str, about: str = "") -> Finding:
    return Finding(Verdict.NOT_APPLICABLE, seen, about=about)


@dataclass(frozen=True, slots=True)
class Probe(Generic[Place]):
    """A look at a `Place`, which is a machine or a cluster. `looks_at` and `fixed_by` are what the documentation says.

    What may hang runs in a child process under a timeout; the examination gives up on the rest (`examine`).
    """

    subject: str
    name: str
    looks_at: str
    fixed_by: str
    look: Callable[[Place], Finding | Iterable[Finding]]


def probe(
    subject: str, name: str, fixed_by: str
) -> Callable[[Callable[[Place], Finding | Iterable[Finding]]], Probe[Place]]:
    """Makes a probe of a function; its docstring says what it looks at."""

    def make(look: Callable[[Place], Finding | Iterable[Finding]]) -> Probe[Place]:
        return Probe(subject, name, " ".join((look.__doc__ or "").split()), fixed_by, look)

    return make
