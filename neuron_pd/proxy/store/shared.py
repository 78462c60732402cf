"""Conversations in Redis (6.2 or newer, or Valkey), shared by several proxies.

    neuron-pd:turn:<digest>     a finished turn, as a JSON array
    neuron-pd:offer:<handle>    transfer parameters that may be used once

Keys come from digests and from handles that a proxy made up: no prompt and no client's id is in Redis. TTLs are
Redis' own. One operation is one round trip, and whole: a script, GETDEL, or a transaction.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import orjson

from neuron_pd.errors import UsageError
from neuron_pd.proxy.breaker import Breaker
from neuron_pd.proxy.store.base import Known, Offer

if TYPE_CHECKING:
    from redis.asyncio import Redis

TURN, OFFER = b"neuron-pd:turn:", b"neuron-pd:offer:"
SCHEMES = ("redis", "rediss", "unix")
PASSWORD_ENV = "NEURON_PD_STORE_PASSWORD"
MAX_CONNECTIONS = 64
RETRY_SECONDS = 1.0  # so often one operation is risked on a Redis that failed: it costs a turn `timeout`
FIRST = """
local values = redis.call('MGET', unpack(KEYS))
for place, value in ipairs(values) do
    if value then
        redis.call('PEXPIRE', KEYS[place], ARGV[1])
        return value
    end
end
return false
"""

Result = TypeVar("Result")
Failed = Callable[[str, str], None]


class RedisStore:
    """Each call ends within `timeout` seconds. After failures in a row Redis is left alone, and tried again by itself.

    `failed(operation, kind)` is told of each call that came to nothing: kind "open" where it was not even tried.
    """

    def __init__(
        self, url: str, ttl: float, timeout: float, failed: Failed, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """UsageError for a URL that is none, or where the client library is missing. Connects when first used."""
        self._redis = connect(url, timeout)
        self._first = self._redis.register_script(FIRST)
        self._ttl = max(1, int(ttl * 1000))
        self._timeout = timeout
        self._failed = failed
        self.breaker = Breaker(clock, cooldown=RETRY_SECONDS, max_cooldown=RETRY_SECONDS)

    async def first(self, keys: Sequence[bytes]) -> Known | None:
        value = await self._try("first", lambda: self._first(keys=_names(keys), args=[self._ttl]))
        return _known(value)

    async def put(
        self, keys: Sequence[bytes], known: Known, offer: Offer | None = None, forget: Sequence[bytes] = ()
    ) -> None:
        value = orjson.dumps(tuple(known))
        async with self._redis.pipeline(transaction=True) as together:
            if forget:
                together.unlink(*_names(forget))
            for name in _names(keys):
                together.set(name, value, px=self._ttl)
            if offer is not None and (milliseconds := int(offer.seconds * 1000)) > 0:
                together.set(OFFER + known.handle.encode(), offer.params, px=milliseconds)
            await self._try("put", together.execute)

    async def take(self, handle: str) -> bytes | None:
        params: bytes | None = await self._try("take", lambda: self._redis.getdel(OFFER + handle.encode()))
        return params

    async def drop(self, keys: Sequence[bytes]) -> list[Known]:
        async with self._redis.pipeline(transaction=True) as together:
            for name in _names(keys):
                together.getdel(name)
            values = await self._try("drop", together.execute)
        return list(dict.fromkeys(known for value in values or () if (known := _known(value)) is not None))

    def expire(self) -> None:
        """Redis does it."""

    async def close(self) -> None:
        await self._redis.aclose()

    async def _try(self, operation: str, call: Callable[[], Awaitable[Result]]) -> Result | None:
        from redis.exceptions import RedisError

        if not self.breaker.allows:
            self._failed(operation, "open")
            return None
        self.breaker.sent()
        try:
            async with asyncio.timeout(self._timeout):
                result = await call()
        except (RedisError, OSError) as error:  # asyncio's TimeoutError is an OSError
            self.breaker.failed()
            self._failed(operation, type(error).__name__)
            return None
        self.breaker.succeeded()
        return result


def check_url(url: str) -> None:
    """UsageError unless `url` names a Redis that this installation can speak to."""
    if urlsplit(url).scheme not in SCHEMES:
        raise UsageError(
            f"--store {without_password(url)!r}: write memory, redis://HOST:PORT/0 or rediss://HOST:PORT/0"
        )
    try:
        import redis.asyncio  # noqa: F401
    except ImportError as error:
        raise UsageError("--store redis://… needs the redis package: pip install 'neuron-pd[redis]'") from error


def connect(url: str, timeout: float) -> "Redis":
    """A client whose own waiting never outlasts `timeout` seconds. UsageError as of `check_url`."""
    check_url(url)
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    more: dict[str, Any] = {}
    if urlsplit(url).password is None and (password := os.environ.get(PASSWORD_ENV)):
        more["password"] = password
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            **more,
        )
    except ValueError as error:
        raise UsageError(f"--store {without_password(url)!r}: {error}") from error
    return Redis(connection_pool=pool)


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _names(keys: Sequence[bytes]) -> list[bytes]:
    return [TURN + key.hex().encode() for key in keys]


def _known(value: bytes | None) -> Known | None:
    """None for what another version wrote."""
    try:
        return Known(*orjson.loads(value)) if value else None
    except (orjson.JSONDecodeError, TypeError):
        return None
