"""What the proxy is told: engines, timeouts, limits."""

from dataclasses import dataclass, field

from neuron_pd.proxy.http import Origin


@dataclass(frozen=True, slots=True)
class Target:
    """An engine as given: where it listens, and the host under which the others reach its KV side channel."""

    origin: Origin
    kv_host: str


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
class Settings:
    """A whole proxy. Sizes in bytes, times in seconds."""

    prefill: tuple[Target, ...]
    decode: tuple[Target, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    phases: Phases = field(default_factory=Phases)
    max_body: int = 64 * 1024 * 1024
    conversation_ttl: float = 3600.0
    max_conversations: int = 100_000
    health_interval: float = 2.0
    health_timeout: float = 2.0
    drain: float = 10.0
