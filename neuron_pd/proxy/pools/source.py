"""What a source of engines says."""

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from neuron_pd.proxy.engines import Role, Target


class Member(NamedTuple):
    """An engine that belongs to a pool; `draining`: it gets no new turns."""

    role: Role
    target: Target
    draining: bool = False


Members = tuple[Member, ...]


class Source(Protocol):
    """Somewhere to look for engines. Equal sources are the same one; hashable."""

    @property
    def name(self) -> str:
        """For people, in logs and in /ready; unique among the sources."""

    def watch(self) -> AsyncIterator[Members]:
        """All members, each time that they may have changed, for ever.

        SourceError when the source cannot be read: what it said last still holds, and it is watched anew later.
        """


class SourceError(Exception):
    """A source cannot be read: why, in one line."""


class Plan(NamedTuple):
    """What a person wrote: engines, and sources of more."""

    members: Members = ()
    sources: tuple[Source, ...] = ()
