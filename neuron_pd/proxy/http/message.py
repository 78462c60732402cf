"""What both sides share: requests, origins, and the ways an upstream can fail.

UpstreamError             no complete response; `sent`: the request may have reached the engine
├── ConnectFailed         refused, unreachable or not in time; nothing was sent
├── StaleConnection       a kept-alive connection ended before any byte of the response
├── UpstreamLost          the connection ended, or what came was not HTTP
└── TimedOut              a deadline passed: `phase` says which one
"""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol, Self
from urllib.parse import urlsplit

from neuron_pd.errors import EngineUnavailable, UsageError

Header = tuple[bytes, bytes]
BLANK = b" \t"  # around a value and no part of it (RFC 9112, 5.1); llhttp takes it away in front only

# Meant for one connection only (RFC 9110, 7.6.1), or set anew for each: never forwarded.
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
        b"host",
        b"content-length",
        b"expect",
    )
)

REASONS = {status.value: b"%d %b" % (status.value, status.phrase.encode()) for status in HTTPStatus}


_line = b"%b: %b\r\n".__mod__


class UpstreamError(EngineUnavailable):
    """An upstream gave no complete response."""


class ConnectFailed(UpstreamError):
    """No connection: nothing was sent. `refused`: the answer was no; otherwise none came in time."""

    def __init__(self, message: str, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class StaleConnection(UpstreamError):
    """A reused connection ended before any byte of the response: most likely the peer had just closed it."""


class UpstreamLost(UpstreamError):
    """The connection ended before the response did, or what came was not HTTP."""


class TimedOut(UpstreamError):
    """A deadline passed."""

    def __init__(self, phase: str, seconds: float) -> None:
        super().__init__(f"{phase} took longer than {seconds:g} s")
        self.phase = phase


class Origin(NamedTuple):
    """Where an engine listens. `base` is a path in front of every target, usually empty; `tls`: behind https.

    A host that is an absolute path is a Unix socket.
    """

    host: str
    port: int
    base: str = ""
    tls: bool = False

    @property
    def unix(self) -> bool:
        return self.host.startswith("/")

    @property
    def authority(self) -> str:
        if self.unix:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read `http[s]://host:port[/base]`; UsageError for anything else."""
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UsageError(f"{url!r} is not an engine's URL ({error}): write http://HOST:PORT") from error
        if parts.scheme not in ("http", "https"):
            raise UsageError(f"{url!r}: engines are spoken to over http:// and https:// only")
        if not host or any(char.isspace() or char in '"<>\\^`{|},' for char in url) or parts.query or parts.fragment:
            raise UsageError(f"{url!r} is not an engine's URL: write http://HOST:PORT")
        if "@" in parts.netloc:
            raise UsageError("an engine's URL may not hold a user or password: API keys are passed on from the client")
        if port == 0:
            raise UsageError(f"{url!r}: port 0 is not a port to connect to")
        tls = parts.scheme == "https"
        return cls(host, (443 if tls else 80) if port is None else port, parts.path.rstrip("/"), tls)


class Request:
    """One request, read completely. Header names are in lower case; `get` answers the last of repeated ones.

    `engine_lines` is for whoever passes the request on: its headers for the next hop, made once for all legs. `turn` is
    for the access log: what the handler has to say of it.
    """

    __slots__ = (
        "_map",
        "body",
        "engine_lines",
        "get",
        "headers",
        "http10",
        "keep_alive",
        "method",
        "path",
        "target",
        "turn",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        headers: list[Header],
        body: bytes = b"",
        keep_alive: bool = False,
        http10: bool = False,
    ) -> None:
        self.method = method
        self.target = target
        self.path = target.partition(b"?")[0].decode("latin-1")
        self.headers = headers
        self.body = body
        self.keep_alive = keep_alive
        self.http10 = http10
        self.engine_lines: bytes | None = None
        self.turn: Callable[[], Mapping[str, str | int | float]] | None = None
        self._map = dict(headers)
        self.get: Callable[[bytes], bytes | None] = self._map.get

    def count(self, name: bytes) -> int:
        """How many headers have this name."""
        if len(self._map) == len(self.headers):
            return name in self._map
        return [one for one, _ in self.headers].count(name)


def status_line(status: int) -> bytes:
    return REASONS.get(status) or b"%d Status" % status


def header_lines(headers: Iterable[Header]) -> bytes:
    """Headers as they go over the wire, each line with its end."""
    return b"".join(map(_line, headers))


class Message(Protocol):
    """A request or a response."""

    headers: list[Header]
    get: Callable[[bytes], bytes | None]


def forwardable(message: Message, without: frozenset[bytes] = HOP_BY_HOP) -> list[Header]:
    """The end-to-end headers: none of `without`, which holds the hop-by-hop ones, nor those that `Connection` names."""
    if message.get(b"connection") is not None:
        named = b",".join([value for name, value in message.headers if name == b"connection"])
        without = without.union([token.strip().lower() for token in named.split(b",")])
    return [header for header in message.headers if header[0] not in without]
