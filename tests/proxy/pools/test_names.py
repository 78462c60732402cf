"""Engines behind a DNS name."""

import socket
from collections.abc import AsyncIterator

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.proxy.engines import Role
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.pools.names import Names
from neuron_pd.proxy.pools.source import Members, SourceError


def hosts(members: Members) -> list[str]:
    return [member.target.origin.url for member in members]


class Resolver:
    """Answers in turn; an exception is raised."""

    def __init__(self, *answers: list[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


async def test_one_engine_an_address_and_resolved_again() -> None:
    resolver = Resolver(["10.0.0.2", "10.0.0.1", "10.0.0.2"], ["10.0.0.3", "fd00::1"])
    watch = Names(Role.DECODE, Origin("decode.svc", 8200), 0.0, resolver).watch()
    assert hosts(await anext(watch)) == ["http://10.0.0.1:8200", "http://10.0.0.2:8200"]
    assert hosts(await anext(watch)) == ["http://10.0.0.3:8200", "http://[fd00::1]:8200"]
    assert resolver.asked == [("decode.svc", 8200)] * 2


async def test_a_name_that_does_not_resolve() -> None:
    resolver = Resolver(["10.0.0.1"], socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    watch: AsyncIterator[Members] = Names(Role.PREFILL, Origin("p.svc", 8100), 0.0, resolver).watch()
    await anext(watch)
    with pytest.raises(SourceError, match=r"p\.svc does not resolve \(Name or service not known\)"):
        await anext(watch)


async def test_this_machine_s_own_resolver() -> None:
    watch = Names(Role.PREFILL, Origin("localhost", 8100)).watch()
    assert "http://127.0.0.1:8100" in hosts(await anext(watch))
    with pytest.raises(SourceError, match="does not resolve"):
        await anext(Names(Role.PREFILL, Origin("no-such-host.invalid", 8100)).watch())


def test_equal_ones_are_the_same_source() -> None:
    one, other = (Names.parse(Role.DECODE, "dns+http://d.svc:8200/base") for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one.name == "decode dns+http://d.svc:8200/base"
    assert one != Names.parse(Role.PREFILL, "dns+http://d.svc:8200/base")
    with pytest.raises(UsageError, match="NAME:PORT only"):
        Names.parse(Role.DECODE, "http://d.svc:8200")
