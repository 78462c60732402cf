"""Engines behind a DNS name: one for each address that it resolves to, as a headless service has."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from neuron_pd.errors import UsageError
from neuron_pd.proxy.engines import Role, Target
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.pools.source import Member, Members, SourceError

SCHEME = "dns+"
INTERVAL = 10.0

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def system_resolver(host: str, port: int) -> list[str]:
    """The addresses of a name, as this machine resolves it. OSError when there are none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


@dataclass(frozen=True, slots=True)
class Names:
    """`dns+http://NAME:PORT`, resolved again every `interval` seconds."""

    role: Role
    origin: Origin
    interval: float = INTERVAL
    resolve: Resolve = field(default=system_resolver, compare=False, repr=False)

    @property
    def name(self) -> str:
        return f"{self.role} {SCHEME}{self.origin.url}"

    @classmethod
    def parse(cls, role: Role, url: str, interval: float = INTERVAL) -> "Names":
        """UsageError for what is not `dns+http://NAME:PORT`."""
        if not url.startswith(f"{SCHEME}http://"):
            raise UsageError(f"{url!r}: names are resolved for {SCHEME}http://NAME:PORT only")
        return cls(role, Origin.parse(url.removeprefix(SCHEME)), interval)

    async def watch(self) -> AsyncIterator[Members]:
        while True:
            try:
                addresses = await self.resolve(self.origin.host, self.origin.port)
            except OSError as error:
                raise SourceError(f"{self.origin.host} does not resolve ({error.strerror or error})") from error
            origins = [Origin(address, self.origin.port, self.origin.base) for address in sorted(set(addresses))]
            yield tuple(Member(self.role, Target(origin, origin.host)) for origin in origins)
            await asyncio.sleep(self.interval)
