"""What the proxy is told: one frozen object a topic. Sizes in bytes, times in seconds."""

from dataclasses import dataclass, field
from pathlib import Path

from neuron_pd.hosts.addresses import PROXY_PORT
from neuron_pd.proxy.admission import Bounds
from neuron_pd.proxy.engines import Balance, Target
from neuron_pd.proxy.http import Limits
from neuron_pd.proxy.pools.source import Source
from neuron_pd.proxy.tls import Tls
from neuron_pd.proxy.ways import Direct


@dataclass(frozen=True, slots=True)
class Phases:
    """How long each phase of a turn may take, in seconds.

    `connect` leaves room for three lost SYNs (1, 2 and 4 s), as when hundreds of clients arrive at once. `first_byte`
    is D's, and covers a whole answer that is not streamed; `idle` is a gap within a response; `stall` is how long a
    client may read nothing while its answer waits.
    """

    connect: float = 10.0
    acquire: float = 1.0
    prefill: float = 600.0
    first_byte: float = 600.0
    idle: float = 300.0
    stall: float = 300.0


@dataclass(frozen=True, slots=True)
class Pools:
    """The engines as given at start, and where more are found: names and labels to look up, a file that is reread.

    `linger`: seconds for which what an engine holds can still be read after it left.
    """

    prefill: tuple[Target, ...] = ()
    decode: tuple[Target, ...] = ()
    sources: tuple[Source, ...] = ()
    file: Path | None = None
    linger: float = 60.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Which engines serve a turn: when a conversation leaves its D, and whether D may serve it alone."""

    balance: Balance = field(default_factory=Balance)
    direct: Direct = Direct.OFF


@dataclass(frozen=True, slots=True)
class Listen:
    """Where clients are served; `drain`: seconds for answers in flight to end after a signal.

    `workers` processes share the port.
    """

    host: str = "127.0.0.1"
    port: int = PROXY_PORT
    drain: float = 10.0
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Conversations:
    """What is remembered of them: seconds after the last use, how many at most (of an own memory), and where.

    `store` is "memory" or a Redis URL, asked for at most `store_timeout` seconds. `kept`: how long a D with vLLM's own
    connector keeps a turn's blocks; 0: nothing is reused from it.
    """

    ttl: float = 3600.0
    most: int = 100_000
    store: str = "memory"
    store_timeout: float = 0.025
    kept: float = 480.0


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the proxy: the keys of a file, else everyone. `engine_key`: what engines are shown in their place."""

    keys: Path | None = None
    engine_key: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What is written down of requests: spans to an OTLP/HTTP endpoint, and lines to a file ("-": standard output)."""

    traces: str | None = None
    access_log: str | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """Looking at the engines: every so many seconds, and how long one look may take."""

    interval: float = 2.0
    timeout: float = 2.0


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole proxy, one object a topic. `token`: of the engines' control path."""

    pools: Pools = field(default_factory=Pools)
    choice: Choice = field(default_factory=Choice)
    listen: Listen = field(default_factory=Listen)
    phases: Phases = field(default_factory=Phases)
    limits: Limits = field(default_factory=Limits)
    admission: Bounds = field(default_factory=Bounds)
    tls: Tls = field(default_factory=Tls)
    conversations: Conversations = field(default_factory=Conversations)
    watch: Watch = field(default_factory=Watch)
    seen: Seen = field(default_factory=Seen)
    access: Access = field(default_factory=Access)
    token: str | None = None
